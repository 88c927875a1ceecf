# Where things go: a C++ package that find_package(orca) finds, and the native part of the Python package.
include(CMakePackageConfigHelpers)

# In the build tree the native files lie together, as they do in the Python package.
set_target_properties(orca PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/native)
# A wheel has no links: there the file has the name that others load it by.
if(SKBUILD)
  set_target_properties(orca PROPERTIES VERSION ${PROJECT_VERSION_MAJOR})
endif()

# --- the C++ package: headers, liborca.so, orca-config.cmake with the target orca::orca
set(ORCA_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/orca)
install(DIRECTORY include/orca DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cxx FILES_MATCHING PATTERN "*.h"
  PATTERN "mutant.h" EXCLUDE)
install(TARGETS orca EXPORT orca-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cxx NAMELINK_COMPONENT cxx)
install(TARGETS orca_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cxx)
install(EXPORT orca-targets NAMESPACE orca:: DESTINATION ${ORCA_CMAKE_DIR} COMPONENT cxx)
# orca::nn, where there is torch.
if(TARGET orca_torch)
  find_package(Libtorch 2.13 REQUIRED)  # for its variables: the version is part of the package
  set_target_properties(orca_torch PROPERTIES INSTALL_RPATH "$ORIGIN;${Libtorch_ROOT}/lib")
  install(TARGETS orca_torch EXPORT orca-nn-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cxx NAMELINK_COMPONENT cxx)
  install(EXPORT orca-nn-targets NAMESPACE orca:: DESTINATION ${ORCA_CMAKE_DIR} COMPONENT cxx)
  install(FILES cmake/FindLibtorch.cmake DESTINATION ${ORCA_CMAKE_DIR} COMPONENT cxx)
endif()
configure_package_config_file(cmake/orca-config.cmake.in ${PROJECT_BINARY_DIR}/orca-config.cmake
  INSTALL_DESTINATION ${ORCA_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/orca-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/orca-config.cmake ${PROJECT_BINARY_DIR}/orca-config-version.cmake
  DESTINATION ${ORCA_CMAKE_DIR} COMPONENT cxx)

# --- the component "python": what a wheel keeps in orca/_native
if(TARGET _core)
  install(TARGETS _core orca LIBRARY DESTINATION . COMPONENT python NAMELINK_SKIP EXCLUDE_FROM_ALL)
  install(TARGETS orca_cli RUNTIME DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  # The torch plugin is built on first use, against the torch that is there then.
  install(DIRECTORY plugins/torch/ DESTINATION plugin_src COMPONENT python EXCLUDE_FROM_ALL
    FILES_MATCHING PATTERN "*.cc" PATTERN "*.h")
  install(FILES include/orca/plugin_api.h DESTINATION plugin_src/include/orca COMPONENT python EXCLUDE_FROM_ALL)
endif()
