// Included first, by the build, in those files that clang compiles against LibTorch 1. In C++20 the members of
// libstdc++'s std::vector are constexpr, and clang then needs them at once, where LibTorch 1 still has the element type
// incomplete (c10::IValue in ATen/core/List.h). These lines make them, and those of std::string which build on them,
// what they are in C++17. fmt cannot live with that: files that include ATen do not include fmt.
#pragma once

#define _GLIBCXX20_CONSTEXPR
#include <type_traits>
#undef __cpp_lib_is_constant_evaluated
