#pragma once

#include <string>

#include "report/document.h"

namespace shardsim {

/// `document` for a terminal: a record as lines of name and value, a list of records as a table whose columns
/// are the names of the first, nested lists below a record as tables of their own.
[[nodiscard]] std::string format_document(const Datum& document);

/// One value on one line: units as people write them, lists separated by commas (lists of records: their
/// number).
[[nodiscard]] std::string format_value(const Datum& datum);

}  // namespace shardsim
