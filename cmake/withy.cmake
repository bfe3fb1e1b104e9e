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
  set(CMAKE_CXX_COMPILER_LAUNCHER "${WITHY_CCACHE}")
endif()
# The sources of a target are compiled several at a time, as one translation unit: the headers of gRPC, GoogleTest and the like take most
# of a compilation. So a name in an anonymous namespace occurs once in a target. The debug preset compiles each source alone, which shows
# includes that are missing.
option(CMAKE_UNITY_BUILD "Compile the sources of a target together" ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)

# -Wno-restrict: g++ 12 reports false overlaps inside std::string's assign and insert (GCC bug 105329).
add_library(withy_options INTERFACE)
target_include_directories(withy_options INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(withy_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Wno-unused-parameter $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-subobject-linkage> -Werror -fno-math-errno -ffp-contract=off)
if(WITHY_SANITIZE)
  # GCC reports values checked by a sanitizer as possibly uninitialised.
  add_compile_options("-fsanitize=${WITHY_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer -g1
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options("-fsanitize=${WITHY_SANITIZE}")
endif()
if(WITHY_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_package(absl REQUIRED)
find_package(Threads REQUIRED)

# Linked into every program: tells a sanitizer about libraries that are not instrumented.
set(WITHY_PROGRAM_SRCS)
if(WITHY_SANITIZE STREQUAL "thread")
  set(WITHY_PROGRAM_SRCS "${CMAKE_CURRENT_LIST_DIR}/tsan_hooks.cc")
  link_libraries(absl::synchronization ${CMAKE_DL_LIBS})
endif()

# withy_library(name SRCS a.cc ... DEPS target ...)
function(withy_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  if(arg_SRCS)
    add_library(${name} STATIC ${arg_SRCS})
    target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE withy_options)
    target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_DEPS})
    target_include_directories(${name} INTERFACE "${CMAKE_SOURCE_DIR}")
  endif()
endfunction()

# withy_test(name SRCS a_test.cc ... DEPS target ... [LABELS asan|tsan ...] [TIMEOUT seconds]): with a label CI also runs
# the test under that sanitizer. Tests are compiled with -O1: their code runs for moments and takes a third longer to compile with -O3.
function(withy_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT WITHY_TESTS)
    return()
  endif()
  add_executable(${name} ${arg_SRCS} ${WITHY_PROGRAM_SRCS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} withy_options GTest::gmock GTest::gtest GTest::gtest_main)
  if(NOT "offline" IN_LIST arg_LABELS)  # those share LibTorch's precompiled headers, which have the product's flags
    target_compile_options(${name} PRIVATE -O1)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
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
endfunction()
