#include "io/trace_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "io/json_file.h"
#include "io/run_document.h"
#include "io/run_reader.h"

namespace shardsim {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "shardsim.trace/1";

/// Reads values by name and collects what is wrong with them.
class TraceReader {
 public:
  explicit TraceReader(std::string file) : file_(std::move(file)) {}

  void complain(const std::string& pointer, std::string expected, const Json& found) {
    errors_.push_back({file_, pointer, "bad value", std::move(expected), quote_json(found), ""});
  }

  /// The value at `name`; nullptr, and a complaint, when it is missing.
  const Json* find(const Json& object, std::string_view name, const std::string& pointer) {
    const auto found = object.is_object() ? object.find(name) : object.end();
    if (object.is_object() && found != object.end()) return &*found;
    errors_.push_back({file_, fmt::format("{}/{}", pointer, name), "missing", "", "", ""});
    return nullptr;
  }

  std::string text(const Json& object, std::string_view name, const std::string& pointer) {
    const auto* found = find(object, name, pointer);
    if (found == nullptr) return {};
    if (found->is_string()) return found->get<std::string>();
    complain(fmt::format("{}/{}", pointer, name), "text", *found);
    return {};
  }

  std::int64_t count(const Json& object, std::string_view name, const std::string& pointer) {
    const auto* found = find(object, name, pointer);
    return found == nullptr ? 0 : count_of(*found, fmt::format("{}/{}", pointer, name));
  }

  std::int64_t count_of(const Json& value, const std::string& pointer) {
    if (value.is_number_integer() && value >= 0) return value.get<std::int64_t>();
    complain(pointer, "an integer >= 0", value);
    return 0;
  }

  /// Calls `visit(item, pointer)` for each item of the array at `name`.
  template <class Visit>
  void each(const Json& object, std::string_view name, const std::string& pointer, const Visit& visit) {
    const auto* found = find(object, name, pointer);
    if (found == nullptr) return;
    const auto at = fmt::format("{}/{}", pointer, name);
    if (!found->is_array()) {
      complain(at, "an array", *found);
      return;
    }
    for (std::size_t i = 0; i < found->size(); ++i) visit((*found)[i], fmt::format("{}/{}", at, i));
  }

  TracedCollective collective(const Json& value, const std::string& pointer) {
    TracedCollective read;
    read.op = text(value, "op", pointer);
    read.phase = text(value, "phase", pointer);
    read.group = text(value, "group", pointer);
    read.ranks = count(value, "ranks", pointer);
    read.input = Bytes(count(value, "input_bytes", pointer));
    read.output = Bytes(count(value, "output_bytes", pointer));
    const auto name = text(value, "dtype", pointer);
    const auto dtype = parse_dtype(name);
    if (!dtype) complain(pointer + "/dtype", "a dtype", name);
    read.dtype = dtype.value_or(Dtype::kFp32);
    return read;
  }

  TrackedBytes bytes(const Json& object, std::string_view name, const std::string& pointer) {
    TrackedBytes read;
    const auto* found = find(object, name, pointer);
    if (found == nullptr) return read;
    const auto at = fmt::format("{}/{}", pointer, name);
    if (!found->is_object()) complain(at, "an object of sizes", *found);
    for (const auto& [category, size] : found->items())
      read[category] = count_of(size, fmt::format("{}/{}", at, category));
    return read;
  }

  /// Repeated sequences, written out.
  std::vector<TracedCollective> collectives(const Json& root) {
    std::vector<TracedCollective> read;
    each(root, "collectives", "", [&](const Json& run, const std::string& pointer) {
      std::vector<TracedCollective> sequence;
      each(run, "sequence", pointer,
           [&](const Json& value, const std::string& at) { sequence.push_back(collective(value, at)); });
      const auto times = count(run, "times", pointer);
      for (std::int64_t i = 0; i < times; ++i) read.insert(read.end(), sequence.begin(), sequence.end());
    });
    return read;
  }

  std::vector<TracedMoment> moments(const Json& memory) {
    std::vector<TracedMoment> read;
    each(memory, "moments", "/memory", [&](const Json& value, const std::string& pointer) {
      auto& moment = read.emplace_back();
      moment.at = text(value, "at", pointer);
      moment.micro_batch = static_cast<std::int32_t>(count(value, "micro_batch", pointer));
      moment.bytes = bytes(value, "bytes", pointer);
      if (moment.at != "end") moment.peak = bytes(value, "peak", pointer);
    });
    return read;
  }

  [[nodiscard]] Diagnostics& errors() { return errors_; }

 private:
  std::string file_;
  Diagnostics errors_;
};

}  // namespace

Result<Trace> read_trace(const std::filesystem::path& file, const std::filesystem::path& data) {
  const auto json = read_json_file(file);
  if (!json.ok()) return json.errors();
  const auto& root = json.value();
  TraceReader reader(file.string());
  if (const auto schema = reader.text(root, "schema", ""); schema != kSchema) {
    reader.complain("/schema", fmt::format("\"{}\"", kSchema), schema);
    return reader.errors();
  }
  Trace trace;
  if (const auto* source = reader.find(root, "source", ""))
    trace.torch = reader.text(*source, "torch", "/source");
  trace.collectives = reader.collectives(root);
  if (const auto* memory = reader.find(root, "memory", "")) {
    trace.peak = reader.bytes(*memory, "peak", "/memory");
    trace.moments = reader.moments(*memory);
  }
  if (root.contains("frozen")) {
    reader.each(root, "frozen", "", [&](const Json& path, const std::string& pointer) {
      if (path.is_string()) {
        trace.frozen.push_back(path.get<std::string>());
      } else {
        reader.complain(pointer, "a module path", path);
      }
    });
  }
  if (const auto* run = reader.find(root, "run", "")) {
    auto read = read_run(RunDocument(*run, file.string(), "/run"), data);
    if (read.ok()) {
      trace.run = std::move(read).value();
    } else {
      reader.errors().insert(reader.errors().end(), read.errors().begin(), read.errors().end());
    }
  }
  if (!reader.errors().empty()) return std::move(reader.errors());
  return trace;
}

}  // namespace shardsim
