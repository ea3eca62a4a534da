#include "cost/price.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/check.h"

namespace shardsim {
namespace {

constexpr double kPicosecondsPerSecond = 1e12;

std::int64_t to_picoseconds(Seconds time) {
  return std::llround(time.count() * kPicosecondsPerSecond);
}

/// The shared things of one played rank, in this order in PricedProgram::resources.
enum RankResource : std::uint32_t { kSms, kMemory, kScaleUp, kNetwork, kHostLink, kRankResources };

/// Fractions of one rank's resources that a task uses.
struct Burden {
  double sms = 0.0;
  bool holds_sms = false;
  double memory = 0.0;
  double scale_up = 0.0;
  double network = 0.0;
  double host_link = 0.0;
};

struct Price {
  Seconds fixed;
  Seconds work;
  Burden burden;
};

/// Indices into PricedProgram::demands.
struct DemandRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

Price kernel_price(const Cost& cost) {
  Price price{cost.fixed, cost.work, {}};
  price.burden.sms = cost.sm_fraction;
  price.burden.memory = cost.memory_fraction;
  return price;
}

Price copy_price(const Cost& cost) {
  Price price{cost.fixed, cost.work, {}};
  price.burden.memory = cost.memory_fraction;
  price.burden.host_link = cost.link_fraction;
  return price;
}

Price collective_price(const CollectiveCost& collective, bool crosses_domains) {
  Price price{collective.cost.fixed, collective.cost.work, {}};
  price.burden.sms = collective.cost.sm_fraction;
  price.burden.holds_sms = true;
  price.burden.memory = collective.cost.memory_fraction;
  price.burden.scale_up = collective.scale_up_fraction;
  price.burden.network = crosses_domains ? collective.cost.link_fraction : 0.0;
  return price;
}

class Pricer {
 public:
  Pricer(const Program& program, const TaskGraph& graph, const CostModel& costs, GroupRouter& router)
      : program_(program), graph_(graph), costs_(costs) {
    kernels_.resize(program.works.size());
    launches_.resize(program.works.size());
    collectives_.resize(program.classes.size());
    for (const RankClass& rank_class : program.classes) {
      routes_.push_back(group_routes(rank_class, router));
    }
    for (std::uint32_t played = 0; played < graph.ranks.size(); ++played) {
      played_of_rank_.emplace(graph.ranks[played].rank, played);
    }
  }

  PricedProgram run() {
    add_resources();
    result_.tasks.reserve(graph_.tasks.size());
    for (const Task& task : graph_.tasks) {
      result_.tasks.push_back(price(task));
    }
    result_.after_begin = graph_.after_begin;
    result_.after = graph_.after;
    return std::move(result_);
  }

 private:
  void add_resources() {
    for (const PlayedRank& played : graph_.ranks) {
      for (const char* name : {"SMs", "memory bandwidth", "scale-up port", "network share", "host link"}) {
        result_.resources.push_back({fmt::format("rank {} {}", played.rank, name), 1.0});
      }
    }
  }

  [[nodiscard]] const RankClass& class_of(const Task& task) const {
    return program_.classes[graph_.ranks[task.rank].rank_class];
  }

  PricedTask price(const Task& task) {
    switch (task.kind) {
      case TaskKind::kHost:
        return {to_picoseconds(host_time(task)), 0, 0, 0};
      case TaskKind::kKernel:
        return task.count == 1 ? single(task, work_of(task)) : segment(task);
      case TaskKind::kCollective:
        return collective(task);
      case TaskKind::kCopy:
        return single(task, work_of(task));
      case TaskKind::kHostJoin:
        return {};
    }
    unreachable("price");
  }

  [[nodiscard]] WorkIndex work_of(const Task& task) const {
    return class_of(task).instructions[task.instruction].argument;
  }

  Seconds host_time(const Task& task) {
    Seconds total;
    const auto& instructions = class_of(task).instructions;
    for (std::uint32_t i = task.instruction; i < task.instruction + task.count; ++i) {
      switch (instructions[i].verb) {
        case Verb::kLaunch:
        case Verb::kCollective:
        case Verb::kCopy:
        case Verb::kHostWork:
          total += host_time(instructions[i].argument);
          break;
        default:
          break;
      }
    }
    return total;
  }

  Seconds host_time(WorkIndex work) {
    auto& known = launches_[work];
    if (!known) {
      const auto* host = std::get_if<HostWork>(&program_.works[work]);
      known = host != nullptr ? costs_.host(*host) : costs_.launch_overhead(program_.works[work]);
    }
    return *known;
  }

  /// Price of a kernel or a copy.
  const Price& price_of(WorkIndex work) {
    auto& known = kernels_[work];
    if (!known) {
      known = std::visit(
          [&](const auto& shape) -> Price {
            using Shape = std::decay_t<decltype(shape)>;
            if constexpr (std::is_same_v<Shape, CopyWork>) {
              return copy_price(costs_.copy(shape));
            } else if constexpr (std::is_constructible_v<KernelShape, Shape>) {
              auto price = kernel_price(costs_.kernel(shape));
              // Everyone waits for the slowest of several GPUs; bandwidth-bound kernels do not differ between
              // them.
              if (!std::is_same_v<Shape, MemoryShape> && program_.world > 1) {
                price.work = price.work / costs_.slowest_of_many();
              }
              return price;
            } else {
              unreachable("a device task that is no kernel and no copy");
            }
          },
          program_.works[work]);
    }
    return *known;
  }

  PricedTask single(const Task& task, WorkIndex work) {
    const Price& price = price_of(work);
    auto [known, fresh] = rank_demands_.try_emplace(std::pair(task.rank, work));
    if (fresh) {
      known->second = append(price.burden, {task.rank});
    }
    return priced(price, known->second);
  }

  /// Launches of the first one's stream among `count` instructions; what else stands between them takes no
  /// device time.
  PricedTask segment(const Task& task) {
    const auto& instructions = class_of(task).instructions;
    const StreamIndex stream = instructions[task.instruction].stream;
    Price sum;
    for (std::uint32_t i = task.instruction; i < task.instruction + task.count; ++i) {
      if (instructions[i].verb != Verb::kLaunch || instructions[i].stream != stream) {
        continue;
      }
      const Price& price = price_of(instructions[i].argument);
      sum.fixed += price.fixed;
      sum.work += price.work;
      sum.burden.sms += price.burden.sms * price.work.count();
      sum.burden.memory += price.burden.memory * price.work.count();
    }
    if (sum.work.count() > 0.0) {
      sum.burden.sms /= sum.work.count();
      sum.burden.memory /= sum.work.count();
    }
    return priced(sum, append(sum.burden, {task.rank}));
  }

  PricedTask collective(const Task& task) {
    const std::uint32_t rank_class = graph_.ranks[task.rank].rank_class;
    const WorkIndex work = work_of(task);
    const auto& shape = std::get<CollectiveWork>(program_.works[work]);
    const GroupRoute& route = routes_[rank_class][shape.group];
    auto [price, fresh_price] = collectives_[rank_class].try_emplace(work);
    if (fresh_price) {
      price->second =
          collective_price(costs_.collective(shape.op, nccl_size(shape), shape.dtype, route, shape.aligned),
                           route.domains > 1);
    }
    auto [demands, fresh] = rank_demands_.try_emplace(std::pair(task.rank, work));
    if (fresh) {
      demands->second = append(price->second.burden, members(task, shape.group));
    }
    return priced(price->second, demands->second);
  }

  /// Played ranks that take part in the collective of `task`. The class's groups are those of its
  /// representative; another rank of the class has the same group moved by the distance between them.
  [[nodiscard]] std::vector<std::uint32_t> members(const Task& task, GroupIndex group) const {
    const RankClass& rank_class = class_of(task);
    const auto& ranks = rank_class.groups[group].ranks;
    const std::int64_t rank = graph_.ranks[task.rank].rank;
    std::vector<std::uint32_t> played = {task.rank};
    if (graph_.ranks.size() == 1) {
      return played;
    }
    const std::int64_t offset = rank - rank_class.representative;
    for (const std::int64_t member : ranks) {
      const auto found = played_of_rank_.find(member + offset);
      if (found != played_of_rank_.end() && found->second != task.rank) {
        played.push_back(found->second);
      }
    }
    std::sort(played.begin(), played.end());
    return played;
  }

  DemandRange append(const Burden& burden, const std::vector<std::uint32_t>& played) {
    DemandRange range;
    range.begin = static_cast<std::uint32_t>(result_.demands.size());
    for (const std::uint32_t rank : played) {
      add(rank, kSms, burden.sms, burden.holds_sms);
      add(rank, kMemory, burden.memory, false);
      add(rank, kScaleUp, burden.scale_up, false);
      add(rank, kNetwork, burden.network, false);
      add(rank, kHostLink, burden.host_link, false);
    }
    range.end = static_cast<std::uint32_t>(result_.demands.size());
    return range;
  }

  void add(std::uint32_t rank, RankResource resource, double weight, bool held) {
    if (weight > 0.0) {
      result_.demands.push_back({rank * kRankResources + resource, weight, held});
    }
  }

  static PricedTask priced(const Price& price, DemandRange demands) {
    return {to_picoseconds(price.fixed), to_picoseconds(price.work), demands.begin, demands.end};
  }

  const Program& program_;
  const TaskGraph& graph_;
  const CostModel& costs_;
  PricedProgram result_;
  std::vector<std::vector<GroupRoute>> routes_;
  std::unordered_map<std::int64_t, std::uint32_t> played_of_rank_;  // looked up only, never iterated
  std::vector<std::optional<Price>> kernels_;                       // by work
  std::vector<std::optional<Seconds>> launches_;                    // by work
  std::vector<std::map<WorkIndex, Price>> collectives_;             // by class
  std::map<std::pair<std::uint32_t, WorkIndex>, DemandRange> rank_demands_;
};

}  // namespace

PricedProgram price(const Program& program, const TaskGraph& graph, const CostModel& costs,
                    GroupRouter& router) {
  return Pricer(program, graph, costs, router).run();
}

std::vector<GroupRoute> group_routes(const RankClass& rank_class, GroupRouter& router) {
  std::vector<GroupRoute> routes;
  routes.reserve(rank_class.groups.size());
  for (const ProcessGroup& group : rank_class.groups) {
    routes.push_back(group.ranks.empty() ? GroupRoute{} : router.route(group.ranks));
  }
  return routes;
}

}  // namespace shardsim
