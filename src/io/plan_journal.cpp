#include "io/plan_journal.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "io/json_file.h"

namespace shardsim {
namespace {

class Fingerprint {
 public:
  void add(std::string_view text) {
    constexpr std::uint64_t kPrime = 1099511628211U;
    for (const char c : text) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * kPrime;
    hash_ = (hash_ ^ 0xffU) * kPrime;
  }
  [[nodiscard]] std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 14695981039346656037U;
};

}  // namespace

std::string journal_line(const std::string& key, const Outcome& outcome) {
  const nlohmann::json line{{"key", key},
                            {"step_time_s", outcome.step_time_s},
                            {"tokens_per_s", outcome.tokens_per_s},
                            {"mfu", outcome.mfu},
                            {"peak_bytes", outcome.peak_bytes},
                            {"fits", outcome.fits},
                            {"limit", outcome.limit},
                            {"refused", outcome.refused}};
  return line.dump() + "\n";
}

Result<JournalEntries> read_journal(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) || std::filesystem::file_size(path, error) == 0)
    return JournalEntries{};
  const auto text = read_text_file(path);
  if (!text.ok()) return text.errors();
  JournalEntries entries;
  std::string_view rest = text.value();
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    if (end == std::string_view::npos) break;
    const auto line = nlohmann::json::parse(rest.substr(0, end), nullptr, false);
    rest.remove_prefix(end + 1);
    if (!line.is_object() || !line.contains("refused")) continue;
    try {
      Outcome outcome{line.at("step_time_s").get<double>(), line.at("tokens_per_s").get<double>(),
                      line.at("mfu").get<double>(),         line.at("peak_bytes").get<std::int64_t>(),
                      line.at("fits").get<bool>(),          line.at("limit").get<std::string>(),
                      line.at("refused").get<std::string>()};
      entries.insert_or_assign(line.at("key").get<std::string>(), std::move(outcome));
    } catch (const nlohmann::json::exception&) {
      continue;  // not a line of ours: the candidate is simulated again
    }
  }
  return entries;
}

Diagnostics append_journal(const std::filesystem::path& path, std::string_view line) {
  bool torn = false;
  {
    std::ifstream before(path, std::ios::binary | std::ios::ate);
    if (before && before.tellg() > 0) {
      before.seekg(-1, std::ios::end);
      torn = before.get() != '\n';
    }
  }
  std::ofstream file(path, std::ios::binary | std::ios::app);
  const auto text = (torn ? "\n" : "") + std::string(line);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.flush();
  if (file) return {};
  return {{path.string(), "", "cannot be written", "a journal file", std::strerror(errno), ""}};
}

std::uint64_t run_fingerprint(const RunSpec& run, std::string_view document) {
  Fingerprint print;
  print.add("shardsim.plan-journal/1");
  print.add(document);
  const auto& model = run.model;
  for (const auto value : {model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim,
                           model.ffn_hidden, model.vocab, model.moe ? model.moe->experts : 0,
                           model.moe ? model.moe->top_k : 0, model.moe ? model.moe->ffn_hidden : 0})
    print.add(fmt::format("{}", value));
  const auto& profile = run.cluster.profile;
  for (const auto& [dtype, peak] : profile.device.peak)
    print.add(fmt::format("{} {}", dtype_name(dtype), peak.count()));
  print.add(fmt::format("{} {} {} {} {} {} {} {} {}", run.cluster.gpus, profile.device.memory.count(),
                        profile.device.memory_bandwidth.count(), profile.node.gpus,
                        profile.node.nvlink_domain_gpus, profile.node.gpu_bandwidth.count(),
                        profile.node.nics, profile.node.nic_gbps, profile.fabric.oversubscription));
  for (const auto& [name, constant] : profile.calibration.constants)
    print.add(fmt::format("{} {}", name, constant.value));
  return print.value();
}

std::string journal_key(std::uint64_t fingerprint, const Candidate& candidate) {
  return fmt::format("{:016x}-{}", fingerprint, fmt::join(candidate.values, "."));
}

}  // namespace shardsim
