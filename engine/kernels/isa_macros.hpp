// Attributes for code that must end up inside its caller's loop.
#pragma once

#define KALIBRI_INLINE [[gnu::always_inline]] inline
#define KALIBRI_UNROLL _Pragma("GCC unroll 16")
#define KALIBRI_UNROLL_TWICE _Pragma("GCC unroll 2")
#define KALIBRI_NO_UNROLL _Pragma("GCC unroll 1")
