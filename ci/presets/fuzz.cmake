# Clang's libFuzzer (ci/fuzz): everything is instrumented for it and for the address and undefined-behaviour sanitizers.
set(CMAKE_C_COMPILER clang-14 CACHE STRING "")
set(CMAKE_CXX_COMPILER clang++-14 CACHE STRING "")
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -D_GLIBCXX_ASSERTIONS" CACHE STRING "")
set(KALIBRI_SANITIZE fuzzer-no-link,address,undefined CACHE STRING "")
set(KALIBRI_REFERENCE OFF CACHE BOOL "")
