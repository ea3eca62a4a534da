#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "plan/search.h"

namespace shardsim {

/// Finished simulations by key.
using JournalEntries = std::map<std::string, Outcome>;

/// One line of a journal: JSON, with a newline. Numbers read back as they were.
[[nodiscard]] std::string journal_line(const std::string& key, const Outcome& outcome);

/// What the journal at `path` holds; nothing when it does not exist. A line that a killed process left
/// incomplete is left out. Errors: an unreadable file.
[[nodiscard]] Result<JournalEntries> read_journal(const std::filesystem::path& path);

/// Appends `line` in one write, after the end of an incomplete last line. Errors: a file that cannot be
/// written.
[[nodiscard]] Diagnostics append_journal(const std::filesystem::path& path, std::string_view line);

/// FNV-1a (64 bit) of everything a prediction of `run` depends on beside the candidate's choices: the model,
/// the profile with its calibration, the batch and the other keys. `document`: the run as JSON text.
[[nodiscard]] std::uint64_t run_fingerprint(const RunSpec& run, std::string_view document);

/// Key of `candidate` of a run with that fingerprint.
[[nodiscard]] std::string journal_key(std::uint64_t fingerprint, const Candidate& candidate);

}  // namespace shardsim
