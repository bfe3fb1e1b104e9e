# Compiler settings and the three target helpers of all parts.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(WITHY_CCACHE ccache)
if(WITHY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these words ccache keeps nothing that is compiled with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${WITHY_CCACHE}")
endif()
# The sources of a target are compiled several at a time, as one translation unit: the headers of gRPC, GoogleTest and the like take most
# of a compilation. So a name in an anonymous namespace occurs once in a target. The debug preset compiles each source alone, which shows
# includes that are missing.
option(CMAKE_UNITY_BUILD "Compile the sources of a target together" ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)

# Release builds: -O2. withy_optimize(3): in this directory and below what computes is compiled with -O3; withy_optimize(1): with -O1, what
# runs for moments and would take a third longer to compile.
if(NOT WITHY_SANITIZE)
  string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
endif()
macro(withy_optimize level)
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT WITHY_SANITIZE)
    add_compile_options(-O${level})
  endif()
endmacro()

# -Wno-restrict, -Wno-stringop-overflow: g++ 12 reports false overlaps and sizes inside std::string (GCC bug 105329).
add_library(withy_options INTERFACE)
target_include_directories(withy_options INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(withy_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Wno-unused-parameter $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-stringop-overflow;-Wno-subobject-linkage> -Werror -fno-math-errno -ffp-contract=off)
if(WITHY_SANITIZE)
  # GCC reports values checked by a sanitizer as possibly uninitialised.
  add_compile_options("-fsanitize=${WITHY_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer -g1
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options("-fsanitize=${WITHY_SANITIZE}")
  if(WITHY_SANITIZE MATCHES "undefined")
    # Two checks that take a tenth of a compilation: a null pointer that is used stops in the address sanitizer, and nothing here is cast
    # down to a type that it may not have.
    add_compile_options(-fno-sanitize=null,vptr)
  endif()
endif()

find_package(absl REQUIRED)
find_package(Threads REQUIRED)

# Linked into every program: tells a sanitizer about libraries that are not instrumented.
set(WITHY_PROGRAM_SRCS)
if(WITHY_SANITIZE STREQUAL "thread")
  set(WITHY_PROGRAM_SRCS "${CMAKE_CURRENT_LIST_DIR}/tsan_hooks.cc")
  link_libraries(absl::synchronization ${CMAKE_DL_LIBS})
endif()

# Tests are compiled without optimization: their code runs for moments and takes twice as long to compile with -O1, three times with a sanitizer.
set(withy_test_flags -O0)

# Headers of libraries that most sources include are compiled once: withy_headers, with gRPC withy_headers_grpc, and each with GoogleTest,
# ..._tests. A part's targets use ${withy_headers} and ${withy_test_headers}. Each source still includes what it uses: the debug preset and clang-tidy
# compile without them.
function(withy_precompiled name)
  cmake_parse_arguments(arg "" "" "HEADERS;DEPS" ${ARGN})
  add_library(${name} OBJECT "${CMAKE_SOURCE_DIR}/cmake/headers.cc")
  target_link_libraries(${name} PRIVATE withy_options absl::statusor absl::str_format absl::synchronization absl::time Threads::Threads ${arg_DEPS})
  target_precompile_headers(${name} PRIVATE
    <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <filesystem> <fstream> <functional> <map>
    <memory> <mutex> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>
    <absl/status/statusor.h> <absl/strings/numbers.h> <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/strings/str_join.h>
    <absl/strings/str_split.h> <absl/synchronization/mutex.h> <absl/time/time.h> ${arg_HEADERS})
  if(name MATCHES "_tests$")
    target_compile_options(${name} PRIVATE ${withy_test_flags})
  endif()
endfunction()
withy_precompiled(withy_headers)
set(withy_headers withy_headers)

function(withy_use_headers name headers)
  if(headers AND NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
    target_precompile_headers(${name} REUSE_FROM ${headers})
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # ccache asks for it
  endif()
endfunction()

# withy_library(name SRCS a.cc ... DEPS target ...)
function(withy_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  if(arg_SRCS)
    add_library(${name} STATIC ${arg_SRCS})
    target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE withy_options)
    target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
    if(WITHY_SANITIZE)
      set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 36)  # as clang-tidy reads them; a sixth less to compile
    endif()
    withy_use_headers(${name} "${withy_headers}")
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_DEPS})
    target_include_directories(${name} INTERFACE "${CMAKE_SOURCE_DIR}")
  endif()
endfunction()

# withy_test(name SRCS a_test.cc ... DEPS target ... [LABELS asan|tsan ...] [TIMEOUT seconds] [OPTIMIZED]): with a label CI also runs
# the test under that sanitizer. OPTIMIZED: it computes for long, or needs the small stack frames of optimized code.
function(withy_test name)
  cmake_parse_arguments(arg "OPTIMIZED" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT WITHY_TESTS)
    return()
  endif()
  add_executable(${name} ${arg_SRCS} ${WITHY_PROGRAM_SRCS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} withy_options GTest::gmock GTest::gtest GTest::gtest_main)
  if(arg_OPTIMIZED)
    target_compile_options(${name} PRIVATE -O1)
  elseif(NOT "offline" IN_LIST arg_LABELS)  # those share LibTorch's precompiled headers, which have the product's flags
    target_compile_options(${name} PRIVATE ${withy_test_flags})
    withy_use_headers(${name} "${withy_test_headers}")
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  if(arg_TIMEOUT)
    set_tests_properties(${name} PROPERTIES COST ${arg_TIMEOUT})  # the long ones begin first, so that no core waits for one at the end
  else()
    set(arg_TIMEOUT 120)
  endif()
  foreach(label IN LISTS arg_LABELS)
    set_property(GLOBAL APPEND PROPERTY withy_tests_${label} ${name})
  endforeach()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()

# withy_binary(name SRCS main.cc ... DEPS target ...): an executable under bin/
function(withy_binary name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS} ${WITHY_PROGRAM_SRCS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} withy_options)
  withy_use_headers(${name} "${withy_headers}")
endfunction()
