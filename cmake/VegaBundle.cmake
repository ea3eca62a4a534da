# The chart library for HTML reports: the modules of Debian's libjs-vega, which come as one CommonJS file each, joined into
# one script that defines `vega`. Without the package the reports have tables only.
find_path(SHARDSIM_VEGA_DIR vega-parser.min.js PATHS /usr/share/javascript/vega NO_DEFAULT_PATH)

set(SHARDSIM_SHARE_DIR ${PROJECT_BINARY_DIR}/share/shardsim)
if(SHARDSIM_VEGA_DIR)
  # In an order in which each needs only those before it. Maps, force layouts and word clouds are left out.
  set(modules util time format expression event-selector canvas loader scale dataflow statistics scenegraph selection
      functions runtime parser view transforms view-transforms encode)
  set(bundle "/* Vega 5, https://vega.github.io, copyright University of Washington Interactive Data Lab, BSD-3-Clause; with parts of D3, copyright Mike Bostock, ISC. */\n")
  string(APPEND bundle "const vega = (() => {\nconst modules = {};\nconst load = (name) => modules[name === 'vega-selections' ? 'vega-selection' : name];\n")
  foreach(module ${modules})
    file(READ ${SHARDSIM_VEGA_DIR}/vega-${module}.min.js text)
    string(REGEX REPLACE "\n//# sourceMappingURL=[^\n]*" "" text "${text}")
    string(APPEND bundle "((exports, module, require) => {\n${text}\n})(modules['vega-${module}'] = {}, {}, load);\n")
  endforeach()
  string(APPEND bundle "Object.assign(modules['vega-dataflow'].transforms, modules['vega-transforms'], modules['vega-view-transforms'], modules['vega-encode']);\n")
  string(APPEND bundle "return {parse: modules['vega-parser'].parse, View: modules['vega-view'].View};\n})();\n")
  # Inside <script> this would end it.
  string(REPLACE "</script" "<\\/script" bundle "${bundle}")
  file(CONFIGURE OUTPUT ${SHARDSIM_SHARE_DIR}/vega.js CONTENT "@bundle@" @ONLY)
else()
  message(STATUS "libjs-vega not found: HTML reports will have tables only")
endif()
