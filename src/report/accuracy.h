#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "report/document.h"

namespace shardsim {

/// A predicted and a measured figure.
struct Comparison {
  double predicted = 0.0;
  double measured = 0.0;
  /// predicted / measured - 1.
  [[nodiscard]] double error() const { return predicted / measured - 1.0; }
};

/// One measured run beside its prediction.
struct AccuracyRow {
  std::string id;
  std::string source;
  std::optional<Comparison> step_time;  ///< seconds
  std::string memory_kind;              ///< "peak_allocated_bytes" or "peak_reserved_bytes"
  std::optional<Comparison> memory;     ///< bytes
  std::string skipped;                  ///< why there is no prediction; empty when there is one
};

/// Statistics of |error| over rows, and of the signed error (`bias`: its mean). Zero when `count` is.
struct ErrorStatistics {
  std::int64_t count = 0;
  double mean = 0.0;
  double median = 0.0;
  double p90 = 0.0;  ///< nearest rank
  double worst = 0.0;
  double bias = 0.0;
};
[[nodiscard]] ErrorStatistics error_statistics(const std::vector<double>& errors);

struct AccuracyGroup {
  std::string source;  ///< "overall" for all rows
  std::int64_t runs = 0;
  std::int64_t skipped = 0;
  ErrorStatistics step_time;
  ErrorStatistics memory;
};

/// Groups by source in the order of first appearance, then "overall".
[[nodiscard]] std::vector<AccuracyGroup> accuracy_groups(const std::vector<AccuracyRow>& rows);

/// `validate --json` (DESIGN section 11).
[[nodiscard]] Datum accuracy_document(const std::vector<AccuracyRow>& rows);

/// The table by source, the `worst` rows with the largest errors, and why runs were skipped.
[[nodiscard]] std::string format_accuracy(const std::vector<AccuracyRow>& rows, std::size_t worst);

}  // namespace shardsim
