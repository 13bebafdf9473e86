# What `cmake --install` puts where: programs, library, headers, find_package(ckptengine) and pkg-config.
include_guard(GLOBAL)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(CKPT_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ckptengine)

# `product`: all that is installed, without tests and benches.
add_custom_target(product)

if(TARGET ckptengine)
  add_dependencies(product ckptengine ckptinterpose)
  target_include_directories(ckptengine INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  install(TARGETS ckptengine EXPORT ckptengineTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS ckptinterpose LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ckptengine DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

  install(EXPORT ckptengineTargets NAMESPACE ckptengine:: DESTINATION ${CKPT_PACKAGE_DIR})
  configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ckptengineConfig.cmake.in ckptengineConfig.cmake
                                INSTALL_DESTINATION ${CKPT_PACKAGE_DIR})
  write_basic_package_version_file(ckptengineConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ckptengineConfig.cmake
                ${CMAKE_CURRENT_BINARY_DIR}/ckptengineConfigVersion.cmake DESTINATION ${CKPT_PACKAGE_DIR})

  file(RELATIVE_PATH CKPT_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" CKPT_PC_TO_PREFIX "${CKPT_PC_TO_PREFIX}")
  configure_file(${CMAKE_CURRENT_LIST_DIR}/ckptengine.pc.in ckptengine.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ckptengine.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

foreach(program ckptd ckptctl)
  if(TARGET ${program})
    add_dependencies(product ${program})
    # DT_RPATH, not DT_RUNPATH: it also holds for the libraries' own needs, so that a bundle brings its UCX along.
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
