# Installs the binary, the libraries of all rooms with their headers, the data, and a package for find_package(shardsim).
# Consumers link shardsim::shardsim and start from predict.h and io/run_reader.h.
include(CMakePackageConfigHelpers)

add_library(shardsim_all INTERFACE)
set_target_properties(shardsim_all PROPERTIES EXPORT_NAME shardsim)
target_link_libraries(shardsim_all INTERFACE shardsim_predict shardsim_io)

get_property(rooms GLOBAL PROPERTY SHARDSIM_ROOMS)
foreach(room ${rooms})
  set_target_properties(shardsim_${room} PROPERTIES EXPORT_NAME ${room})
  list(APPEND targets shardsim_${room})
endforeach()
install(TARGETS ${targets} shardsim_all EXPORT shardsimTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/shardsim)
install(EXPORT shardsimTargets NAMESPACE shardsim:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/shardsim)
install(DIRECTORY src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardsim FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE)
install(DIRECTORY models hardware_profiles examples DESTINATION ${CMAKE_INSTALL_DATADIR}/shardsim)
if(SHARDSIM_VEGA_DIR)
  install(FILES ${SHARDSIM_SHARE_DIR}/vega.js DESTINATION ${CMAKE_INSTALL_DATADIR}/shardsim)
endif()
install(TARGETS shardsim RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

configure_package_config_file(cmake/shardsimConfig.cmake.in ${PROJECT_BINARY_DIR}/shardsimConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/shardsim)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardsimConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shardsimConfig.cmake ${PROJECT_BINARY_DIR}/shardsimConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/shardsim)
