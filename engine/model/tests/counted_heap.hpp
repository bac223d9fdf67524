// What C++ code has on the heap, counted: a test program that links this has its own operator new.
#pragma once

#include <cstdint>

namespace kalibri::test {

/// Bytes that are on the heap now.
std::int64_t heap_bytes();
/// The most there have been since the last call of forget_heap_peak.
std::int64_t heap_peak_bytes();
void forget_heap_peak();

}  // namespace kalibri::test
