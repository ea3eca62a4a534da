#pragma once

#include <string>

#include "report/document.h"

namespace shardsim {

/// JSON text of `document`: two spaces of indentation, keys in the record's order, a newline at the end.
/// Bytes are integers, times seconds, bandwidths bytes per second; a number that is not finite is null. The
/// same document gives the same bytes.
[[nodiscard]] std::string to_json(const Datum& document);

/// to_json without blanks and newlines: for programs.
[[nodiscard]] std::string to_compact_json(const Datum& document);

}  // namespace shardsim
