#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/run_keys.h"

namespace shardsim {

/// A run file as text before it is read: what flags, `--set` and `--vary` change.
class RunDocument {
 public:
  /// An empty document, to be filled by flags.
  RunDocument();
  RunDocument(nlohmann::json root, std::string file, std::string prefix);
  RunDocument(const RunDocument& other);
  RunDocument(RunDocument&&) noexcept;
  RunDocument& operator=(RunDocument other) noexcept;
  ~RunDocument();

  /// Puts the value that `text` spells (see ValueKind) at the dotted `path`. `origin` is what the user wrote
  /// ("--tp", "--set layout.tp") and takes the pointer's place in later diagnostics.
  /// Errors: a path that no key has, with the nearest.
  [[nodiscard]] Diagnostics set(std::string_view path, std::string_view text, std::string origin,
                                const std::vector<RunKey>& keys);

  /// Diagnostics of this document as the user should see them: `pointer`s under values that came from the
  /// command line name the option, all others this file.
  [[nodiscard]] Diagnostics locate(Diagnostics diagnostics) const;

  [[nodiscard]] const nlohmann::json& root() const { return *root_; }
  [[nodiscard]] const std::string& file() const { return file_; }
  /// Of its pointers: "/runs/3" for a run inside a `shardsim.runs/1` file, else empty.
  [[nodiscard]] const std::string& prefix() const { return prefix_; }

 private:
  std::unique_ptr<nlohmann::json> root_;
  std::string file_;
  std::string prefix_;  ///< of pointers, for a run inside a `shardsim.runs/1` file: "/runs/3"
  std::vector<std::pair<std::string, std::string>> origins_;  ///< pointer, option
};

/// The runs of a file: one for `shardsim.run/1`, all for `shardsim.runs/1`, in the file's order.
/// Errors: those of read_json_file; a schema that is neither.
[[nodiscard]] Result<std::vector<RunDocument>> load_run_documents(const std::filesystem::path& path);

/// The runs of "FILE", or the one of "FILE#3" (the fourth). Errors: those of load_run_documents; no run of
/// this index.
[[nodiscard]] Result<std::vector<RunDocument>> load_chosen_runs(const std::string& file_and_index);

/// "FILE#3" as file and index; a file whose own name ends so is taken whole.
[[nodiscard]] std::pair<std::string, std::optional<std::size_t>> split_run_index(const std::string& file);

/// The document as JSON text, as a run file holds it.
[[nodiscard]] std::string document_text(const RunDocument& document);

/// Splits "a,b,c" at commas outside brackets, braces and quotes. Empty parts are kept.
[[nodiscard]] std::vector<std::string> split_values(std::string_view text);

}  // namespace shardsim
