# Flags of every target here; consumers of the installed package do not inherit them.
# -ffp-contract=off: a fused multiply-add would make results differ between machines.
add_library(shardsim_flags INTERFACE)
target_compile_options(shardsim_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -ffp-contract=off
  $<$<BOOL:${SHARDSIM_WERROR}>:-Werror>)

# One folder of src/ is one library. DEPENDS is the only place where an arrow between rooms is drawn.
function(shardsim_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;EXTERNAL")
  add_library(shardsim_${name} STATIC ${arg_SOURCES})
  add_library(shardsim::${name} ALIAS shardsim_${name})
  target_include_directories(shardsim_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shardsim>)
  list(TRANSFORM arg_DEPENDS PREPEND shardsim::)
  target_link_libraries(shardsim_${name}
    PUBLIC ${arg_DEPENDS} ${arg_EXTERNAL}
    PRIVATE $<BUILD_INTERFACE:shardsim_flags>)
  target_compile_features(shardsim_${name} PUBLIC cxx_std_20)
  set_property(GLOBAL APPEND PROPERTY SHARDSIM_ROOMS ${name})
endfunction()

# One test program a room: tests/<room>/*_test.cpp linked with GoogleTest.
function(shardsim_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS")
  add_executable(${name}_tests ${arg_SOURCES})
  list(TRANSFORM arg_DEPENDS PREPEND shardsim::)
  target_link_libraries(${name}_tests PRIVATE ${arg_DEPENDS} shardsim_flags GTest::gtest_main GTest::gmock)
  target_compile_definitions(${name}_tests PRIVATE SHARDSIM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(${name}_tests DISCOVERY_TIMEOUT 60)
endfunction()
