# Address and undefined-behaviour sanitizers; LibTorch does not run under them, so the reference is left out. Full debug
# information (-g) makes g++ spend minutes on a test of many checks; -g1 has what a stack trace needs.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -D_GLIBCXX_ASSERTIONS" CACHE STRING "")
set(KALIBRI_SANITIZE address,undefined CACHE STRING "")
set(KALIBRI_REFERENCE OFF CACHE BOOL "")
