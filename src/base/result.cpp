#include "base/result.h"

namespace shardsim {

std::string format_diagnostic(const Diagnostic& diagnostic) {
  std::string text = diagnostic.file;
  if (!diagnostic.pointer.empty()) text += (text.empty() ? "" : ":") + diagnostic.pointer;
  text += (text.empty() ? "" : ": ") + diagnostic.problem;
  if (!diagnostic.expected.empty()) text += "\n  expected: " + diagnostic.expected;
  if (!diagnostic.found.empty()) text += "\n  found: " + diagnostic.found;
  if (!diagnostic.hint.empty()) text += "\n  hint: " + diagnostic.hint;
  return text;
}

}  // namespace shardsim
