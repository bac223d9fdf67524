// The best ISA header that the compiler was told it may use: each kernel file is compiled with its own flags. A test
// defines KALIBRI_PLAIN_VECTORS to run the kernels on the specification.
#pragma once

#if defined(KALIBRI_PLAIN_VECTORS)
#include "engine/kernels/isa_scalar.hpp"
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "engine/kernels/isa_avx512.hpp"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "engine/kernels/isa_avx2.hpp"
#elif defined(__aarch64__)
#include "engine/kernels/isa_neon.hpp"
#else
#include "engine/kernels/isa_scalar.hpp"
#endif
