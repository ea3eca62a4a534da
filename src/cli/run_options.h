#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/console.h"
#include "io/run_document.h"
#include "io/run_keys.h"
#include "layout/run_spec.h"

namespace shardsim {

/// The options by which every command takes a run: a file, a flag per key, `--set`, `--data`.
struct RunOptions {
  std::string file;
  std::vector<std::pair<std::size_t, std::string>> flags;  ///< index into `keys`, value; in the order given
  std::vector<std::string> sets;                           ///< "path=value"
  std::string data;
  std::vector<RunKey> keys = run_keys();
};

/// Adds them to `command`.
void add_run_options(CLI::App& command, RunOptions& options);

/// Adds `--data DIR` alone.
void add_data_option(CLI::App& command, std::string& data);

/// Adds `--json [FILE|-]`; without a value it means "-": standard output.
void add_json_option(CLI::App& command, std::string& json, const std::string& help);

/// The run's document: the file's values, over them the flags, over them the `--set`s.
/// Errors: those of load_run_documents; a file with several runs of which none is chosen ("FILE#INDEX").
[[nodiscard]] Result<RunDocument> run_document(const RunOptions& options);

/// run_document, read.
[[nodiscard]] Result<RunSpec> resolve_run(const RunOptions& options, const Console& console);

/// Splits "path=value". Errors: no "=".
[[nodiscard]] Result<std::pair<std::string, std::string>> split_assignment(const std::string& text,
                                                                           const std::string& option);

/// Whether an option's value is true or false, so that it may be left out.
[[nodiscard]] bool is_truth_option(const CLI::Option& option);

/// "did you mean" for a name, or nothing: option lists are too long to print.
[[nodiscard]] std::string suggest_near(const std::string& name, const std::vector<std::string>& names);

}  // namespace shardsim
