#include "io/nccl_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace shardsim {
namespace {

using Words = std::vector<std::string_view>;

constexpr std::array<std::pair<std::string_view, Dtype>, 18> kTypes{{{"float", Dtype::kFp32},
                                                                     {"half", Dtype::kFp16},
                                                                     {"bfloat16", Dtype::kBf16},
                                                                     {"double", Dtype::kFp64},
                                                                     {"int8", Dtype::kInt8},
                                                                     {"uint8", Dtype::kUint8},
                                                                     {"char", Dtype::kInt8},
                                                                     {"int32", Dtype::kInt32},
                                                                     {"int", Dtype::kInt32},
                                                                     {"uint32", Dtype::kInt32},
                                                                     {"int64", Dtype::kInt64},
                                                                     {"uint64", Dtype::kInt64},
                                                                     {"fp8", Dtype::kFp8},
                                                                     {"f8e4m3", Dtype::kFp8},
                                                                     {"f8e5m2", Dtype::kFp8},
                                                                     {"fp8_e4m3", Dtype::kFp8},
                                                                     {"fp8_e5m2", Dtype::kFp8},
                                                                     {"fp16", Dtype::kFp16}}};

/// Spellings of the tests' names, in logs and file names.
constexpr std::array<std::pair<std::string_view, CollectiveOp>, 15> kTests{
    {{"all_reduce", CollectiveOp::kAllReduce},
     {"allreduce", CollectiveOp::kAllReduce},
     {"all-reduce", CollectiveOp::kAllReduce},
     {"all_gather", CollectiveOp::kAllGather},
     {"allgather", CollectiveOp::kAllGather},
     {"all-gather", CollectiveOp::kAllGather},
     {"reduce_scatter", CollectiveOp::kReduceScatter},
     {"reducescatter", CollectiveOp::kReduceScatter},
     {"reduce-scatter", CollectiveOp::kReduceScatter},
     {"alltoall", CollectiveOp::kAllToAll},
     {"all_to_all", CollectiveOp::kAllToAll},
     {"sendrecv", CollectiveOp::kSend},
     {"send_recv", CollectiveOp::kSend},
     {"broadcast", CollectiveOp::kBroadcast},
     {"reduce_perf", CollectiveOp::kReduce}}};  // last: others end so

Words words_of(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  Words words;
  for (std::size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const auto end = std::min(line.find_first_of(kBlank, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlank, end);
  }
  return words;
}

std::optional<std::int64_t> whole(std::string_view word) {
  std::int64_t value = 0;
  const auto parsed = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || parsed.ec != std::errc() || parsed.ptr != word.data() + word.size())
    return std::nullopt;
  return value;
}

std::optional<double> number(std::string_view word) {
  const std::string text(word);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<Dtype> type_of(std::string_view word) {
  for (const auto& [name, dtype] : kTypes) {
    if (name == word) return dtype;
  }
  return std::nullopt;
}

std::optional<CollectiveOp> test_in(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [name, op] : kTests) {
    if (lower.find(name) != std::string::npos) return op;
  }
  return std::nullopt;
}

/// What a table's header said.
struct Header {
  std::optional<CollectiveOp> op;
  std::set<std::int64_t> ranks;
  std::set<std::string> hosts;
};

/// A row before it is known what it is a row of.
struct Row {
  std::size_t line = 0;
  std::int64_t size = 0;
  Dtype dtype = Dtype::kFp32;
  std::string_view reduction;  ///< "sum", "none", …; empty in old all-gather tables
  double time_us = 0.0;
  double bus_ratio = 0.0;  ///< bus over algorithm bandwidth; 0 when the row shows neither
};

struct Table {
  Header header;
  std::vector<Row> rows;
};

/// One half of a row: out of place or in place.
struct Half {
  std::optional<double> time_us;
  double algorithm = 0.0;
  double bus = 0.0;
};

class LogReader {
 public:
  LogReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Result<std::vector<Sample>> run() {
    tables_.emplace_back();
    std::size_t line = 0;
    for (std::size_t at = 0; at < text_.size();) {
      const auto end = std::min(text_.find('\n', at), text_.size());
      read_line(text_.substr(at, end - at), ++line);
      at = end + 1;
    }
    std::vector<Sample> samples;
    for (const auto& table : tables_) add_samples(table, samples);
    if (errors_.empty() && samples.empty()) {
      complain(0, "no rows of nccl-tests here", "size count type [redop] [root] time algbw busbw #wrong …",
               "");
    }
    if (!errors_.empty()) return std::move(errors_);
    return samples;
  }

 private:
  void complain(std::size_t line, std::string problem, std::string expected, std::string_view found) {
    errors_.push_back({file_, line == 0 ? "" : fmt::format("line {}", line), std::move(problem),
                       std::move(expected), std::string(found), ""});
  }

  Header& header() { return tables_.back().header; }

  void read_line(std::string_view line, std::size_t at) {
    const auto words = words_of(line);
    for (std::size_t i = 2; i < words.size(); ++i) {
      const auto dtype = type_of(words[i]);
      const auto size = whole(words[i - 2]);
      if (dtype && size && whole(words[i - 1])) return read_row(words, i, *size, *dtype, at);
    }
    if (line.find('#') == std::string_view::npos && line.find("_perf") == std::string_view::npos) return;
    read_header(line, words);
  }

  void read_header(std::string_view line, const Words& words) {
    if (line.find("nThread") != std::string_view::npos) start_table();
    if (line.find("Collective test starting") != std::string_view::npos) {
      start_table();
      header().op = test_in(line);
    } else if (line.find("_perf") != std::string_view::npos && !header().op) {
      header().op = test_in(line);
    }
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] != "Rank") continue;
      if (const auto rank = whole(words[i + 1])) read_rank(*rank, words);
      return;
    }
  }

  void read_rank(std::int64_t rank, const Words& words) {
    header().ranks.insert(rank);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] == "on") header().hosts.insert(std::string(words[i + 1]));
    }
  }

  /// A header after rows belongs to the next table. What was announced before the first row stays.
  void start_table() {
    if (!tables_.back().rows.empty()) tables_.emplace_back();
  }

  void read_row(const Words& words, std::size_t type, std::int64_t size, Dtype dtype, std::size_t line) {
    if (size == 0) return;
    Row row{line, size, dtype, {}, 0.0, 0.0};
    std::size_t at = type + 1;
    if (at < words.size() && !number(words[at]) && words[at] != "N/A") row.reduction = words[at++];
    // The root is a whole number, and so may a large time be: a row without a root has four or eight numbers
    // left.
    if (at < words.size()) {
      const auto root = whole(words[at]);
      if (root && (*root < 0 || remaining(words, at) % 4 == 1)) ++at;
    }
    const auto out_of_place = read_half(words, at, line);
    if (!out_of_place) return;
    Half in_place;
    if (at < words.size()) {
      const auto second = read_half(words, at, line);
      if (!second) return;
      in_place = *second;
    }
    keep(row, *out_of_place, in_place);
  }

  /// Words from `at` that belong to the row: numbers and N/A.
  static std::size_t remaining(const Words& words, std::size_t at) {
    std::size_t count = 0;
    while (at + count < words.size() && (number(words[at + count]) || words[at + count] == "N/A")) ++count;
    return count;
  }

  /// time algbw busbw #wrong, from `at` on. Nothing after a complaint.
  std::optional<Half> read_half(const Words& words, std::size_t& at, std::size_t line) {
    Half half;
    const auto first = at;
    std::array<std::optional<double>, 3> values;
    for (auto& value : values) {
      if (at >= words.size()) {
        complain(line, "the row ends before its times do", "time algbw busbw #wrong, once or twice", "");
        return std::nullopt;
      }
      const auto word = words[at++];
      value = number(word);
      if (!value && word != "N/A") {
        complain(line, "bad value", "a time in us, then bandwidths in GB/s", word);
        return std::nullopt;
      }
    }
    if (at < words.size() && !wrong_results_are_none(words[at++], line)) return std::nullopt;
    if (values[0] && *values[0] <= 0.0) {
      complain(line, "bad value", "a time in us, > 0", words[first]);
      return std::nullopt;
    }
    half.time_us = values[0];
    half.algorithm = values[1].value_or(0.0);
    half.bus = values[2].value_or(0.0);
    return half;
  }

  /// `#wrong` is a count; older versions print the largest error, such as 2e-07. Anything else ends the row.
  bool wrong_results_are_none(std::string_view word, std::size_t line) {
    const auto count = whole(word);
    if (!count || *count == 0) return true;
    complain(line, "wrong results", "0 in the #wrong column", word);
    return false;
  }

  void keep(Row row, const Half& out_of_place, const Half& in_place) {
    double sum = 0.0;
    int halves = 0;
    for (const auto* half : {&out_of_place, &in_place}) {
      if (!half->time_us) continue;
      sum += *half->time_us;
      ++halves;
      if (half->algorithm > 0.0) row.bus_ratio = half->bus / half->algorithm;
    }
    if (halves == 0) return;
    row.time_us = sum / halves;
    tables_.back().rows.push_back(row);
  }

  /// The ratio of the largest row, whose bandwidths have the most digits.
  static double ratio_of(const Table& table) {
    const auto largest =
        std::max_element(table.rows.begin(), table.rows.end(), [](const Row& a, const Row& b) {
          return a.size * (a.bus_ratio > 0.0 ? 1 : 0) < b.size * (b.bus_ratio > 0.0 ? 1 : 0);
        });
    return largest->bus_ratio;
  }

  [[nodiscard]] std::optional<CollectiveOp> op_of(const Table& table, double ratio) const {
    if (table.header.op) return table.header.op;
    const auto slash = file_.find_last_of('/');
    if (auto op = test_in(slash == std::string::npos ? file_ : file_.substr(slash + 1))) return op;
    const bool reduces = table.rows.front().reduction == "sum";
    if (reduces && ratio > 1.005) return CollectiveOp::kAllReduce;
    const auto ranks = static_cast<double>(table.header.ranks.size());
    if (reduces && ranks > 2.0 && std::abs(ratio - (ranks - 1.0) / ranks) < 0.02)
      return CollectiveOp::kReduceScatter;
    return std::nullopt;
  }

  /// busbw / algbw is 2 (n - 1) / n or (n - 1) / n.
  static std::optional<std::int64_t> ranks_of_ratio(CollectiveOp op, double ratio) {
    const double away = op == CollectiveOp::kAllReduce ? ratio / 2.0 : ratio;
    if (op == CollectiveOp::kBroadcast || op == CollectiveOp::kSend || away <= 0.0 || away >= 1.0)
      return std::nullopt;
    return std::llround(1.0 / (1.0 - away));
  }

  void add_samples(const Table& table, std::vector<Sample>& samples) {
    if (table.rows.empty()) return;
    const auto line = table.rows.front().line;
    const double ratio = ratio_of(table);
    const auto op = op_of(table, ratio);
    if (!op) {
      complain(line, "nothing says which collective this is",
               "a line \"# Collective test starting: NAME\", or the test's name in the file's name", "");
      return;
    }
    CollectiveSample sample;
    sample.op = *op;
    sample.ranks = static_cast<std::int64_t>(table.header.ranks.size());
    sample.nodes = static_cast<std::int64_t>(table.header.hosts.size());
    if (sample.ranks == 0) {
      const auto ranks = ranks_of_ratio(*op, ratio);
      if (!ranks || *ranks < 2) {
        complain(line, "nothing says how many ranks there were", "lines \"# Rank 0 … on HOST\"", "");
        return;
      }
      sample.ranks = *ranks;
    }
    for (const auto& row : table.rows) {
      sample.size = Bytes(row.size);
      sample.dtype = row.dtype;
      samples.push_back({sample, row.time_us * kMicro, file_, fmt::format("line {}", row.line)});
    }
  }

  std::string_view text_;
  const std::string& file_;
  std::vector<Table> tables_;
  Diagnostics errors_;
};

}  // namespace

Result<std::vector<Sample>> read_nccl_log(std::string_view text, const std::string& file) {
  return LogReader(text, file).run();
}

}  // namespace shardsim
