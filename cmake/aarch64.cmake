# Cross build for aarch64 with Debian's compiler and an arm64 tree in WITHY_SYSROOT. aarch64-sysroot.sh makes the tree.
# The programs run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES WITHY_SYSROOT)
set(WITHY_SYSROOT "" CACHE PATH "Debian arm64 tree with the libraries")
set(CMAKE_SYSROOT "${WITHY_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} "${WITHY_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${WITHY_SYSROOT}")
# A core with dot products but without later extensions, as on small boards.
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64-static;-cpu;cortex-a76;-L;${WITHY_SYSROOT}")
