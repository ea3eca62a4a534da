#pragma once

#include "metrics/summary.h"
#include "report/document.h"

namespace shardsim {

/// The prediction as `shardsim.prediction/1` (DESIGN section 11), for to_json.
[[nodiscard]] Datum prediction_document(const Summary& summary);

}  // namespace shardsim
