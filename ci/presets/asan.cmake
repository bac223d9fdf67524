# Address and undefined-behaviour sanitizers; LibTorch does not run under them, so the reference is left out.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(KALIBRI_SANITIZE address,undefined CACHE STRING "")
set(KALIBRI_REFERENCE OFF CACHE BOOL "")
