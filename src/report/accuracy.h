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

/// What a measured run was, as far as reports compare and group by it.
struct RunTraits {
  std::string model;   ///< equal for runs of the same architecture
  std::string device;  ///< the hardware profile's name
  std::int64_t gpus = 0;
  std::int64_t nodes = 0;
  std::int64_t global_batch = 0;     ///< sequences
  std::int64_t sequence_length = 0;  ///< tokens
  std::string strategy;              ///< "fsdp2"
  std::string parallelism;  ///< degrees above one beside the data-parallel ones: "tp + pp"; may be empty
};

/// Whether a run fitted into GPU memory, and whether it was predicted to.
struct FitComparison {
  bool predicted_fits = true;
  bool measured_fits = true;
  bool stated =
      false;  ///< the run states its outcome; else it is known to fit because something was measured
  std::int64_t needed_bytes = 0;    ///< predicted: reserved and outside the allocator, of the worst class
  std::int64_t capacity_bytes = 0;  ///< of the device
  [[nodiscard]] bool right() const { return predicted_fits == measured_fits; }
};

/// One measured run beside its prediction.
struct AccuracyRow {
  std::string id;
  std::string source;
  RunTraits traits;
  std::optional<double> step_time_tolerance;  ///< relative error that the run accepts
  std::optional<double> memory_tolerance;
  std::optional<FitComparison> fit;
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

/// How often the outcome of runs that state one was predicted.
struct OutcomeMatrix {
  std::int64_t fits_as_fits = 0;  ///< measured fits, predicted fits
  std::int64_t fits_as_oom = 0;
  std::int64_t oom_as_fits = 0;
  std::int64_t oom_as_oom = 0;
  std::int64_t measured = 0;         ///< further runs, of which something was measured, so that they fitted
  std::int64_t measured_as_oom = 0;  ///< of these, predicted to run out of memory
  [[nodiscard]] std::int64_t stated() const { return fits_as_fits + fits_as_oom + oom_as_fits + oom_as_oom; }
  [[nodiscard]] std::int64_t right() const { return fits_as_fits + oom_as_oom; }
};
[[nodiscard]] OutcomeMatrix outcome_matrix(const std::vector<AccuracyRow>& rows);

/// A sentence for each tolerance that `row` states and exceeds.
[[nodiscard]] std::vector<std::string> exceeded_tolerances(const AccuracyRow& row);

/// Groups by source in the order of first appearance, then "overall".
[[nodiscard]] std::vector<AccuracyGroup> accuracy_groups(const std::vector<AccuracyRow>& rows);

/// `validate --json` (DESIGN section 11).
[[nodiscard]] Datum accuracy_document(const std::vector<AccuracyRow>& rows);

/// The tables by source, of orderings and of outcomes, the `worst` rows with the largest errors, and why runs
/// were skipped.
[[nodiscard]] std::string format_accuracy(const std::vector<AccuracyRow>& rows, std::size_t worst);

}  // namespace shardsim
