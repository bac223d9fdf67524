# AArch64 from another machine, with Debian's cross compiler (g++-aarch64-linux-gnu) and emulator (qemu-user-static). The
# whole project needs ci/setup's libraries for arm64 (multiarch); engine/kernels/tests/arm64 needs none of them.
set(CMAKE_SYSTEM_NAME Linux CACHE STRING "")
set(CMAKE_SYSTEM_PROCESSOR aarch64 CACHE STRING "")
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc CACHE STRING "")
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++ CACHE STRING "")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static CACHE STRING "")
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(KALIBRI_REFERENCE OFF CACHE BOOL "")
