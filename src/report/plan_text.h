#pragma once

#include <cstdint>
#include <string>

#include "plan/search.h"
#include "report/document.h"
#include "report/text_style.h"

namespace shardsim {

/// What a plan was asked, for its headline.
struct PlanQuestion {
  std::string model_name;
  std::string profile_name;
  std::int64_t gpus = 0;
  std::int64_t global_batch = 0;
  std::int64_t sequence_length = 0;
  Objective objective = Objective::kThroughput;
  double usd_per_gpu_hour = 0.0;  ///< 0: not known
};

/// The ranked layouts as a table, the size of the space, and what was dropped why.
[[nodiscard]] std::string format_plan(const PlanQuestion& question, const SearchResult& result,
                                      const TextStyle& style);

/// The same as a document (`shardsim.plan/1`).
[[nodiscard]] Datum plan_document(const PlanQuestion& question, const SearchResult& result,
                                  const RunSpec& base);

/// "throughput", "memory", "cost".
[[nodiscard]] std::string_view objective_name(Objective objective);

}  // namespace shardsim
