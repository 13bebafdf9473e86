# How every target of the project is declared. A module is a static, position-independent library of hidden symbols;
# only libckptengine exports anything.
include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
find_program(CKPT_CCACHE ccache)
mark_as_advanced(CKPT_CCACHE)
if(CKPT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CKPT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CKPT_CCACHE})
endif()

add_library(ckpt_settings INTERFACE)
target_include_directories(ckpt_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
                                                   ${PROJECT_SOURCE_DIR}/include)
# Not for CUDA sources: nvcc makes host code that is no model of style.
set(CKPT_NOT_CUDA "$<COMPILE_LANGUAGE:C,CXX>")
target_compile_options(ckpt_settings INTERFACE
  "$<${CKPT_NOT_CUDA}:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>")
find_package(Threads REQUIRED)
target_link_libraries(ckpt_settings INTERFACE Threads::Threads)
# GCC 12 warns of copies that overlap wherever a literal is put before a moved string (its bug 105329).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(ckpt_settings INTERFACE "$<${CKPT_NOT_CUDA}:-Wno-restrict>")
endif()
if(CKPT_SANITIZE)
  target_compile_options(ckpt_settings INTERFACE
    "$<${CKPT_NOT_CUDA}:-fsanitize=${CKPT_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(ckpt_settings INTERFACE -fsanitize=${CKPT_SANITIZE})
endif()

# ckpt_precompile(TARGET HEADER...): compiles headers once, for all targets that reuse them from TARGET: modules under
# sanitizers, tests everywhere but in debug, where each source has to include what it uses.
function(ckpt_precompile name)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${name} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")  # for the compiler cache
  endif()
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

# ckpt_share_module_headers(TARGET): what most modules include.
function(ckpt_share_module_headers name)
  if(NOT TARGET ckpt_module_headers)
    file(CONFIGURE OUTPUT module_headers.cpp CONTENT "")
    add_library(ckpt_module_headers STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/module_headers.cpp)
    target_link_libraries(ckpt_module_headers PRIVATE ckpt_settings nlohmann_json::nlohmann_json)
    ckpt_precompile(ckpt_module_headers <algorithm> <chrono> <condition_variable> <deque> <filesystem> <functional> <map>
                    <mutex> <optional> <set> <span> <string> <thread> <vector> <nlohmann/json.hpp>)
  endif()
  target_precompile_headers(${name} REUSE_FROM ckpt_module_headers)
endfunction()

# Under sanitizers the optimizer would take longer than it saves in the tests, which mostly wait.
set(CKPT_COMPUTING_OPTIMIZATION "" CACHE STRING "How targets that compute much are optimized, where not as all others")

# ckpt_computing(TARGET...): tests wait for what they compute.
function(ckpt_computing)
  foreach(name ${ARGN})
    target_compile_options(${name} PRIVATE "$<${CKPT_NOT_CUDA}:${CKPT_COMPUTING_OPTIMIZATION}>")
    set_target_properties(${name} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)  # those are not optimized
  endforeach()
endfunction()

# A linker that takes a fraction of the time, for what is not shipped.
find_program(CKPT_MOLD mold)
mark_as_advanced(CKPT_MOLD)

# ckpt_fast_link(TARGET): linked by mold, where it is installed.
function(ckpt_fast_link name)
  if(CKPT_MOLD)
    target_link_options(${name} PRIVATE -fuse-ld=mold)
  endif()
endfunction()

# Which sources and modules a target is made of: "name|folder|sources|libraries" in each line. From it,
# scripts/testing/concerned.py tells which test programs a change concerns.
set(CKPT_TARGET_LIST ${PROJECT_BINARY_DIR}/targets.txt)
file(WRITE ${CKPT_TARGET_LIST} "")
function(ckpt_list_target name sources libraries)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  file(APPEND ${CKPT_TARGET_LIST} "${name}|${folder}|${sources}|${libraries}\n")
endfunction()

# ckpt_module(NAME SOURCES a.cpp ... LIBS x y): static library `ckpt_NAME`.
function(ckpt_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(ckpt_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(ckpt_${name} PUBLIC ckpt_settings ${ARG_LIBS})
  ckpt_list_target(ckpt_${name} "${ARG_SOURCES}" "${ARG_LIBS}")
  if(CKPT_SANITIZE)
    ckpt_share_module_headers(ckpt_${name})
  endif()
endfunction()

# ckpt_program(NAME SOURCES a.cpp ... LIBS x y): executable in bin/.
function(ckpt_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ckpt_settings ${ARG_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  if(CKPT_SANITIZE)
    ckpt_fast_link(${name})
  endif()
endfunction()

# What `./dev test` builds of a preset for each change; `all` is what it builds with --all.
add_custom_target(change)

set(CKPT_TEST_OPTIMIZATION "" CACHE STRING "How the tests' own sources are optimized, where not as all others")

# ckpt_share_test_headers(TARGET): what most tests include.
function(ckpt_share_test_headers name)
  if(NOT TARGET ckpt_test_headers)
    file(CONFIGURE OUTPUT test_headers.cpp CONTENT "int main() {}\n")
    add_executable(ckpt_test_headers EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp)
    target_link_libraries(ckpt_test_headers PRIVATE ckpt_settings GTest::gtest GTest::gmock GTest::gtest_main)
    target_compile_options(ckpt_test_headers PRIVATE ${CKPT_TEST_OPTIMIZATION})
    ckpt_precompile(ckpt_test_headers <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp> <filesystem> <functional>
                    <future> <map> <thread>)
  endif()
  target_precompile_headers(${name} REUSE_FROM ckpt_test_headers)
endfunction()

# Whether a test with these labels is left out of the run for each change. In release, none is. Under sanitizers:
# "asan_nightly" is about rules rather than memory, as all of the core is; "tsan_nightly" has hardly a thread.
function(ckpt_is_nightly result)
  set(is_nightly FALSE)
  if(CKPT_SANITIZE STREQUAL "thread")
    if("tsan_nightly" IN_LIST ARGN)
      set(is_nightly TRUE)
    endif()
  elseif(CKPT_SANITIZE)
    if(CKPT_PURE_TESTS OR "asan_nightly" IN_LIST ARGN)
      set(is_nightly TRUE)
    endif()
  endif()
  set(${result} ${is_nightly} PARENT_SCOPE)
endfunction()

set(CKPT_TEST_TIMEOUT_S 300 CACHE STRING "After how many seconds a test program is killed")

# ckpt_test(NAME SOURCES a.cpp ... LIBS x y [COST s] [LABELS l]): GoogleTest program. ctest runs it whole, as
# whole.NAME, because processes take long to start. Programs with the highest COST start first.
function(ckpt_test name)
  cmake_parse_arguments(ARG "" "COST" "SOURCES;LIBS;LABELS" ${ARGN})
  if((CKPT_SANITIZE AND "release_only" IN_LIST ARG_LABELS) OR
     (CKPT_SANITIZE STREQUAL "thread" AND "one_thread" IN_LIST ARG_LABELS))
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ckpt_settings ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  ckpt_fast_link(${name})
  if(NOT "release_only" IN_LIST ARG_LABELS)
    target_compile_options(${name} PRIVATE ${CKPT_TEST_OPTIMIZATION})
    ckpt_share_test_headers(${name})
  endif()
  ckpt_list_target(${name} "${ARG_SOURCES}" "${ARG_LIBS}")
  ckpt_is_nightly(is_nightly ${ARG_LABELS})
  if(is_nightly)
    set(ARG_LABELS nightly)
  else()
    add_dependencies(change ${name})
  endif()
  add_test(NAME whole.${name} COMMAND ${name})
  set_tests_properties(whole.${name} PROPERTIES TIMEOUT ${CKPT_TEST_TIMEOUT_S} LABELS "${ARG_LABELS}")
  if(ARG_COST)
    set_tests_properties(whole.${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()

# ckpt_compile_at_once(NAME BATCH): BATCH sources in one unit, where sources are joined at all.
function(ckpt_compile_at_once name batch)
  if(TARGET ${name} AND CMAKE_UNITY_BUILD)
    set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${batch})
  endif()
endfunction()

# ckpt_bench(NAME SOURCES a.cpp ... LIBS x y): a bench program in bench/ of the build folder.
function(ckpt_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ckpt_settings ${ARG_LIBS} ckpt_comparison)
  # Their files name their helpers as they like.
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench UNITY_BUILD OFF)
  ckpt_fast_link(${name})
endfunction()
