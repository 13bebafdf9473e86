# Whether CUDA sources are compiled: CKPT_CUDA is AUTO (when there is an nvcc and something to compile), ON or OFF.
# Sets CKPT_HAS_CUDA, and CKPT_CUDA_SUMMARY for people.
include_guard(GLOBAL)

set(CKPT_CUDA AUTO CACHE STRING "Compile the CUDA sources: AUTO, ON or OFF")
set_property(CACHE CKPT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CKPT_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES")

file(GLOB_RECURSE CKPT_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cu ${PROJECT_SOURCE_DIR}/src/*.cu)
file(GLOB CKPT_CUDA_FOLDERS /usr/local/cuda*/bin)
find_program(CKPT_NVCC nvcc HINTS ${CKPT_CUDA_FOLDERS})
mark_as_advanced(CKPT_NVCC)

set(CKPT_HAS_CUDA FALSE)
set(version_file ${PROJECT_BINARY_DIR}/cuda_version.txt)  # tells scripts/gpu_driver.py that there is CUDA
file(REMOVE ${version_file})
if(CKPT_CUDA STREQUAL "ON" AND NOT CKPT_NVCC)
  message(FATAL_ERROR "CKPT_CUDA is ON and there is no nvcc on the PATH or in /usr/local/cuda*/bin: "
                      "install the CUDA toolkit, or set CKPT_CUDA to AUTO")
elseif(CKPT_CUDA STREQUAL "OFF")
  set(summary "off (CKPT_CUDA=OFF)")
elseif(NOT CKPT_NVCC)
  set(summary "no nvcc found; building without it")
elseif(NOT CKPT_CUDA_SOURCES)
  set(summary "nvcc found (${CKPT_NVCC}), but this version has no CUDA sources")
else()
  set(CMAKE_CUDA_COMPILER ${CKPT_NVCC})
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(CKPT_HAS_CUDA TRUE)
  file(WRITE ${version_file} "${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR}\n")
  set(summary "compiled with ${CKPT_NVCC}")
endif()
set(CKPT_CUDA_SUMMARY "${summary}" CACHE INTERNAL "What the build does about CUDA, in words")
message(STATUS "CUDA: ${summary}")
