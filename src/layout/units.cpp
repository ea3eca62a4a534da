#include "layout/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace shardsim {
namespace {

/// Modules whose calls gather one unit; the root unit is implied.
using ModuleGroup = std::vector<ModuleIndex>;
using ModuleGroups = std::vector<ModuleGroup>;

bool inside_block(const ModelGraph& graph, ModuleIndex module) {
  for (; module != kNoIndex; module = graph.modules[module].parent) {
    if (graph.modules[module].is_block) return true;
  }
  return false;
}

bool holds_block(const ModelGraph& graph, ModuleIndex module) {
  const auto& node = graph.modules[module];
  return node.is_block || std::any_of(node.children.begin(), node.children.end(),
                                      [&](ModuleIndex child) { return holds_block(graph, child); });
}

/// Outermost blocks in registration order.
ModuleGroup blocks_of(const ModelGraph& graph) {
  ModuleGroup blocks;
  for (ModuleIndex i = 0; i < graph.modules.size(); ++i) {
    const auto& module = graph.modules[i];
    const bool nested = module.parent != kNoIndex && inside_block(graph, module.parent);
    if (module.is_block && !nested) blocks.push_back(i);
  }
  return blocks;
}

/// The language-model head when its weight is tied to the embedding: a linear layer outside the blocks that
/// owns no parameter. kNoIndex when there is none.
ModuleIndex tied_head(const ModelGraph& graph) {
  for (ModuleIndex i = 0; i < graph.modules.size(); ++i) {
    const auto& module = graph.modules[i];
    if (module.type == "Linear" && module.parameters.empty() && !inside_block(graph, i)) return i;
  }
  return kNoIndex;
}

ModuleIndex first_embedding(const ModelGraph& graph) {
  for (ModuleIndex i = 0; i < graph.modules.size(); ++i) {
    if (graph.modules[i].type == "Embedding" && !graph.modules[i].parameters.empty()) return i;
  }
  return kNoIndex;
}

/// Outermost modules beside the blocks that own parameters: embeddings, final norm, head.
ModuleGroup ends_of(const ModelGraph& graph, ModuleIndex tied) {
  ModuleGroup ends;
  for (ModuleIndex i = 1; i < graph.modules.size(); ++i) {
    if (inside_block(graph, i) || holds_block(graph, i)) continue;
    if (graph.modules[i].parameters.empty() && i != tied) continue;
    bool covered = false;
    for (auto up = graph.modules[i].parent; up != kNoIndex; up = graph.modules[up].parent) {
      covered = covered || std::find(ends.begin(), ends.end(), up) != ends.end();
    }
    if (!covered) ends.push_back(i);
  }
  return ends;
}

ModuleGroups each_alone(const ModuleGroup& modules) {
  ModuleGroups groups;
  for (const auto module : modules) groups.push_back({module});
  return groups;
}

/// FSDP1's size-based policy. Source: PyTorch 2.14 torch/distributed/fsdp/wrap.py, `_recursive_wrap` and
/// `size_based_auto_wrap_policy`.
class SizePolicy {
 public:
  SizePolicy(const ModelGraph& graph, double threshold) : graph_(graph), threshold_(threshold) {}

  ModuleGroups groups() && {
    visit(0);
    return std::move(groups_);
  }

 private:
  [[nodiscard]] std::int64_t numel(ModuleIndex module) const {
    std::int64_t total = 0;
    for (const auto index : graph_.modules[module].parameters) total += graph_.parameters[index].numel();
    for (const auto child : graph_.modules[module].children) total += numel(child);
    return total;
  }
  [[nodiscard]] bool large(std::int64_t count) const { return static_cast<double>(count) >= threshold_; }

  /// Elements below `module` that ended up in wrapped modules.
  std::int64_t visit(ModuleIndex module) {
    const auto& node = graph_.modules[module];
    const auto all = numel(module);
    // PyTorch's attention module reads its projections' weights without calling them.
    if (!large(all) || node.type == "MultiheadAttention") return 0;
    std::int64_t wrapped = 0;
    for (const auto child : node.children) wrapped += visit(child);
    const bool container = node.type == "ModuleList" || node.type == "ModuleDict";
    if (module == 0 || container || !large(all - wrapped)) return wrapped;
    groups_.push_back({module});
    return all;
  }

  const ModelGraph& graph_;
  double threshold_;
  ModuleGroups groups_;
};

struct GroupsOf {
  const ModelGraph& graph;

  Result<ModuleGroups> operator()(const WrapRoot& /*wrap*/) const { return ModuleGroups{}; }
  Result<ModuleGroups> operator()(const WrapBlock& /*wrap*/) const { return each_alone(blocks_of(graph)); }

  Result<ModuleGroups> operator()(const WrapBlockAndEnds& /*wrap*/) const {
    const auto blocks = blocks_of(graph);
    const auto tied = tied_head(graph);
    ModuleGroup first;
    ModuleGroup last;
    for (const auto module : ends_of(graph, tied)) {
      (blocks.empty() || module < blocks.front() ? first : last).push_back(module);
    }
    // Tied weights must sit in one group (PyTorch 2.14 _fsdp_state.py, _validate_no_duplicate_params).
    if (tied != kNoIndex) {
      first.insert(first.end(), last.begin(), last.end());
      last.clear();
    }
    auto groups = each_alone(blocks);
    for (auto* ends : {&first, &last}) {
      if (!ends->empty()) groups.push_back(*ends);
    }
    return groups;
  }

  Result<ModuleGroups> operator()(const WrapEvery& wrap) const {
    SHARDSIM_CHECK(wrap.blocks >= 1, "every {} blocks", wrap.blocks);
    ModuleGroups groups;
    const auto blocks = blocks_of(graph);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i % static_cast<std::size_t>(wrap.blocks) == 0) groups.emplace_back();
      groups.back().push_back(blocks[i]);
    }
    return groups;
  }

  Result<ModuleGroups> operator()(const WrapMinParameters& wrap) const {
    return SizePolicy(graph, wrap.parameters).groups();
  }

  Result<ModuleGroups> operator()(const WrapPatterns& wrap) const {
    ModuleGroup matched;
    Diagnostics errors;
    for (std::size_t i = 0; i < wrap.patterns.size(); ++i) {
      const auto error = match(wrap.patterns[i], matched);
      if (error.problem.empty()) continue;
      errors.push_back(error);
      errors.back().pointer = fmt::format("/data_parallel/wrap/{}", i);
      errors.back().found = fmt::format("\"{}\"", wrap.patterns[i]);
    }
    if (!errors.empty()) return errors;
    std::sort(matched.begin(), matched.end());
    matched.erase(std::unique(matched.begin(), matched.end()), matched.end());
    return each_alone(matched);
  }

  /// Adds what `pattern` matches; the root needs no wrapping of its own. A diagnostic without a problem:
  /// fine.
  [[nodiscard]] Diagnostic match(std::string_view pattern, ModuleGroup& matched) const {
    bool any = false;
    std::vector<std::string> paths;
    Diagnostic error;
    for (ModuleIndex i = 0; i < graph.modules.size(); ++i) {
      const auto& module = graph.modules[i];
      paths.push_back(module.path);
      if (!matches_pattern(module.path, pattern)) continue;
      any = true;
      if (!module.has_forward) {
        error.problem = fmt::format("\"{}\" is a {}, which is never called and so cannot be wrapped",
                                    module.path, module.type);
        error.hint = fmt::format("its children: \"{}.*\"", module.path);
      }
      if (i != 0) matched.push_back(i);
    }
    if (any) return error;
    error.problem = "matches no module of the model";
    error.expected = "a module path, with * for one component and ** for any";
    error.hint = suggest_path(pattern, paths);
    return error;
  }

  [[nodiscard]] static std::string suggest_path(std::string_view pattern, std::vector<std::string> paths) {
    std::stable_sort(paths.begin(), paths.end(), [&](const std::string& a, const std::string& b) {
      return edit_distance(pattern, a) < edit_distance(pattern, b);
    });
    return paths.empty() || paths.front().empty() ? std::string()
                                                  : fmt::format("nearest path: \"{}\"", paths.front());
  }
};

std::string group_name(const ModelGraph& graph, const ModuleGroup& group) {
  std::vector<std::string_view> paths;
  for (const auto module : group) paths.emplace_back(graph.modules[module].path);
  return fmt::format("{}", fmt::join(paths, ","));
}

/// Gives every parameter to the innermost wrapped module around it; `units` ends with the root.
void assign_parameters(const ModelGraph& graph, std::vector<Unit>& units) {
  std::map<ModuleIndex, std::size_t> unit_of;
  for (std::size_t i = 0; i < units.size(); ++i) {
    for (const auto module : units[i].modules) unit_of.emplace(module, i);
  }
  for (ParameterIndex i = 0; i < graph.parameters.size(); ++i) {
    auto module = graph.parameters[i].module;
    while (!unit_of.contains(module)) {
      SHARDSIM_CHECK(module != kNoIndex, "parameter {} has no owner", graph.parameters[i].name);
      module = graph.modules[module].parent;
    }
    units[unit_of.at(module)].parameters.push_back(i);
  }
}

/// Where the calls of `module` find their gathered parameters: the innermost unit around it.
std::size_t unit_around(const ModelGraph& graph, const std::vector<Unit>& units, ModuleIndex module) {
  for (; module != kNoIndex; module = graph.modules[module].parent) {
    for (std::size_t i = 0; i < units.size(); ++i) {
      const auto& modules = units[i].modules;
      if (std::find(modules.begin(), modules.end(), module) != modules.end()) return i;
    }
  }
  unreachable("unit_around");
}

Diagnostics check_tied(const ModelGraph& graph, const std::vector<Unit>& units) {
  const auto head = tied_head(graph);
  const auto embedding = first_embedding(graph);
  if (head == kNoIndex || embedding == kNoIndex) return {};
  const auto& owner = units[unit_around(graph, units, embedding)];
  const auto& user = units[unit_around(graph, units, head)];
  if (&owner == &user) return {};
  return {{.file = {},
           .pointer = "/data_parallel/wrap",
           .problem = "tied weights must be in one unit",
           .expected = fmt::format("\"{}\" and \"{}\" in the same unit", graph.modules[embedding].path,
                                   graph.modules[head].path),
           .found = fmt::format("units \"{}\" and \"{}\"", owner.name, user.name),
           .hint = "wrap blocks only, or use block_and_ends, which joins them"}};
}

}  // namespace

Result<std::vector<Unit>> wrap_units(const ModelGraph& graph, const WrapSpec& wrap) {
  SHARDSIM_CHECK(!graph.modules.empty(), "a model graph without a root module");
  auto groups = std::visit(GroupsOf{graph}, wrap);
  if (!groups.ok()) return groups.errors();
  auto ordered = std::move(groups).value();
  std::sort(ordered.begin(), ordered.end());
  std::vector<Unit> units;
  for (auto& group : ordered) {
    units.push_back({.name = group_name(graph, group), .modules = group, .parameters = {}, .is_root = false});
  }
  units.push_back({.name = {}, .modules = {0}, .parameters = {}, .is_root = true});
  assign_parameters(graph, units);
  auto errors = check_tied(graph, units);
  if (!errors.empty()) return errors;
  return units;
}

}  // namespace shardsim
