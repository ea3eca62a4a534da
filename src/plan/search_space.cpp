#include "plan/search_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/text.h"
#include "layout/mesh.h"
#include "layout/stages.h"

namespace shardsim {
namespace {

constexpr std::int32_t kNoPipeline = static_cast<std::int32_t>(PipelineSchedule::k1f1b);

std::vector<std::int32_t> divisors(std::int64_t value, std::int64_t most) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 1; i <= std::min(value, most); ++i) {
    if (value % i == 0) all.push_back(static_cast<std::int32_t>(i));
  }
  return all;
}

std::vector<std::int32_t> powers_of_two(std::int64_t most) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 1; i <= most; i *= 2) all.push_back(static_cast<std::int32_t>(i));
  return all;
}

std::vector<std::int32_t> all_names(Axis axis) {
  std::vector<std::int32_t> all(axis_names(axis).size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  return all;
}

std::optional<Axis> axis_of(std::string_view path) {
  for (std::size_t i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (axis_path(axis) == path) return axis;
  }
  return {};
}

std::optional<std::int32_t> read_value(Axis axis, const std::string& text) {
  const auto& names = axis_names(axis);
  if (!names.empty()) {
    const auto at = std::find(names.begin(), names.end(), text);
    if (at == names.end()) return {};
    return static_cast<std::int32_t>(at - names.begin());
  }
  std::int32_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < 1) return {};
  return value;
}

Diagnostics fix(SearchSpace& space, const std::string& path, const std::vector<std::string>& texts) {
  const auto axis = axis_of(path);
  if (!axis) {
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < kAxes; ++i) paths.emplace_back(axis_path(static_cast<Axis>(i)));
    return {{"command line", "--fix", fmt::format("a plan does not vary \"{}\"", path),
             fmt::format("{}", fmt::join(paths, ", ")), path,
             "other keys are set with their own flag or --set"}};
  }
  std::vector<std::int32_t> values;
  Diagnostics errors;
  for (const auto& text : texts) {
    if (const auto value = read_value(*axis, text)) {
      values.push_back(*value);
      continue;
    }
    const auto& names = axis_names(*axis);
    errors.push_back({"command line", "--fix " + path, "bad value",
                      names.empty() ? "an integer >= 1" : fmt::format("{}", fmt::join(names, ", ")), text,
                      ""});
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  space[*axis] = std::move(values);
  return errors;
}

/// Walks the axes that decide legality; the others multiply what it finds.
class Walk {
 public:
  Walk(const SearchSpace& space, const RunSpec& base, const std::function<void(const Candidate&)>& visit)
      : space_(space), run_(base), own_(base.software.stack), gpus_(base.cluster.gpus), visit_(visit) {
    count_.combinations = space.size();
  }

  SpaceCount run() && {
    step(0);
    return std::move(count_);
  }

 private:
  static constexpr std::size_t kStructural = static_cast<std::size_t>(Axis::kRecompute);

  [[nodiscard]] std::int64_t combinations_from(std::size_t axis) const {
    std::int64_t product = 1;
    for (; axis < kAxes; ++axis) product *= static_cast<std::int64_t>(space_.values[axis].size());
    return product;
  }

  void refuse(std::string_view rule, std::int64_t combinations) {
    auto found = count_.illegal.find(std::string(rule));
    if (found == count_.illegal.end()) {
      found = count_.illegal.emplace(rule, IllegalRule{}).first;
      auto shown = at_;
      for (auto& value : shown.values) value = std::max(value, 0);
      for (const auto axis : {Axis::kTp, Axis::kCp, Axis::kPp, Axis::kEp, Axis::kDpReplicate,
                              Axis::kMicroBatch, Axis::kVirtualStages}) {
        shown[axis] = std::max(shown[axis], 1);
      }
      found->second.example = describe(shown, gpus_);
    }
    found->second.count += combinations;
  }

  /// A rule that the values so far break whatever follows, or nothing.
  [[nodiscard]] std::string_view cut(std::size_t axis) const {
    const auto product = std::int64_t{at_[Axis::kTp]} * at_[Axis::kCp] * at_[Axis::kPp];
    const bool fsdp = at_.system() == System::kFsdp2;
    switch (static_cast<Axis>(axis)) {
      case Axis::kPp:
        if (gpus_ % product != 0) return "the degrees do not multiply to the GPUs";
        return "";
      case Axis::kEp:
        return at_[Axis::kEp] > 1 && !run_.model.moe ? "the model has no experts to spread" : "";
      case Axis::kDpReplicate:
        if (at_[Axis::kDpReplicate] > 1 && !fsdp) return "no effect: replicas are a choice of FSDP2 only";
        return gpus_ / product % at_[Axis::kDpReplicate] != 0 ? "the degrees do not multiply to the GPUs"
                                                              : "";
      case Axis::kMicroBatch:
        return run_.batch.global_batch % (gpus_ / at_[Axis::kTp] / at_[Axis::kCp] / at_[Axis::kPp] *
                                          at_[Axis::kMicroBatch]) !=
                       0
                   ? "the global batch does not divide into equal micro-batches"
                   : "";
      case Axis::kSequenceParallel:
        return at_[Axis::kTp] == 1 && at_[Axis::kSequenceParallel] != 0
                   ? "no effect: sequence parallelism without tensor parallelism"
                   : "";
      case Axis::kSchedule:
        return at_[Axis::kPp] == 1 && at_[Axis::kSchedule] != kNoPipeline
                   ? "no effect: a schedule without a pipeline"
                   : "";
      default:
        return "";
    }
  }

  void step(std::size_t axis) {
    if (axis == kStructural) {
      finish();
      return;
    }
    for (const auto value : space_.values[axis]) {
      at_.values[axis] = value;
      const auto rule = cut(axis);
      if (rule.empty()) {
        step(axis + 1);
      } else {
        refuse(rule, combinations_from(axis + 1));
      }
    }
    at_.values[axis] = 0;
  }

  void finish() {
    const auto rest = combinations_from(kStructural);
    at_[Axis::kRecompute] = 0;
    apply_to(at_, own_, run_);
    auto errors = check_layout(run_);
    if (errors.empty()) errors = unsupported_features(run_);
    if (!errors.empty()) {
      refuse(errors.front().pointer + ": " + errors.front().problem, rest);
    } else {
      visit_choices(rest);
    }
    for (auto axis = kStructural; axis < kAxes; ++axis) at_.values[axis] = 0;
  }

  /// First values stand for choices that have no meaning for the system.
  void visit_choices(std::int64_t combinations) {
    const bool fsdp = at_.system() == System::kFsdp2;
    const bool megatron = at_.system() == System::kMegatron || at_.system() == System::kMegatronDdp;
    const auto choices = [&](Axis axis, bool meant) {
      const auto& all = space_[axis];
      return meant ? all : std::vector<std::int32_t>(all.begin(), all.begin() + 1);
    };
    std::int64_t visited = 0;
    for (const auto recompute : space_[Axis::kRecompute]) {
      if (recompute == 1 && framework_name(at_.system()) == "deepspeed") continue;
      for (const auto reshard : choices(Axis::kReshard, fsdp)) {
        for (const auto wrap : choices(Axis::kWrap, fsdp)) {
          for (const auto overlap : choices(Axis::kOverlap, megatron)) {
            at_[Axis::kRecompute] = recompute;
            at_[Axis::kReshard] = reshard;
            at_[Axis::kWrap] = wrap;
            at_[Axis::kOverlap] = overlap;
            ++visited;
            visit_(at_);
          }
        }
      }
    }
    count_.legal += visited;
    if (visited < combinations)
      refuse("no effect: a choice that the system does not have", combinations - visited);
  }

  const SearchSpace& space_;
  RunSpec run_;
  SoftwareStack own_;
  std::int64_t gpus_;
  const std::function<void(const Candidate&)>& visit_;
  Candidate at_{};
  SpaceCount count_;
};

}  // namespace

std::int64_t SearchSpace::size() const {
  std::int64_t product = 1;
  for (const auto& axis : values) product *= static_cast<std::int64_t>(axis.size());
  return product;
}

Result<SearchSpace> search_space(const RunSpec& base, const SpaceLimits& limits) {
  SearchSpace space;
  const auto gpus = base.cluster.gpus;
  const auto domain = limits.max_tp > 0 ? limits.max_tp : domain_gpus(base.cluster.profile.node);
  constexpr std::int64_t kLargestMicroBatch = 16;
  constexpr std::int64_t kMostContext = 64;
  space[Axis::kTp] = divisors(gpus, domain);
  space[Axis::kCp] = divisors(gpus, kMostContext);
  space[Axis::kPp] = divisors(gpus, std::max<std::int64_t>(1, base.model.layers));
  space[Axis::kEp] = base.model.moe ? divisors(base.model.moe->experts, gpus) : std::vector<std::int32_t>{1};
  space[Axis::kDpReplicate] = divisors(gpus, gpus);
  space[Axis::kMicroBatch] = powers_of_two(kLargestMicroBatch);
  space[Axis::kVirtualStages] = divisors(std::max<std::int64_t>(1, base.model.layers), base.model.layers);
  for (const auto axis : {Axis::kSystem, Axis::kSequenceParallel, Axis::kSchedule, Axis::kRecompute,
                          Axis::kReshard, Axis::kWrap, Axis::kOverlap}) {
    space[axis] = all_names(axis);
  }
  Diagnostics errors;
  // Bounds take the groups of the usual order: others would lie on other links.
  if (base.layout.order != LayoutSpec{}.order) {
    errors.push_back({"", "/layout/order", "a plan places ranks in the usual order only",
                      fmt::format("{}", fmt::join(LayoutSpec{}.order, ", ")),
                      fmt::format("{}", fmt::join(base.layout.order, ", ")), "leave the key out"});
  }
  if (limits.framework != "any") {
    std::erase_if(space[Axis::kSystem], [&](std::int32_t system) {
      return framework_name(static_cast<System>(system)) != limits.framework;
    });
    if (space[Axis::kSystem].empty()) {
      errors.push_back({"command line", "--framework", "no such framework",
                        "any, torchtitan, megatron or deepspeed", limits.framework, ""});
    }
  }
  for (const auto& [path, values] : limits.fixed) {
    for (auto& error : fix(space, path, values)) errors.push_back(std::move(error));
  }
  if (!errors.empty()) return errors;
  return space;
}

SpaceCount for_each_legal(const SearchSpace& space, const RunSpec& base,
                          const std::function<void(const Candidate&)>& visit) {
  return Walk(space, base, visit).run();
}

std::string broken_rule(const Candidate& candidate, const RunSpec& base) {
  const auto run = apply(candidate, base);
  auto errors = check_layout(run);
  if (errors.empty()) errors = unsupported_features(run);
  return errors.empty() ? "" : errors.front().pointer + ": " + errors.front().problem;
}

}  // namespace shardsim
