#include "io/output_file.h"

#include <unistd.h>

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <system_error>

namespace shardsim {

Diagnostics write_file(const std::filesystem::path& path, std::string_view content) {
  const auto fail = [&](std::string problem) {
    return Diagnostics{{path.string(), "", std::move(problem), "", "", ""}};
  };
  std::error_code error;
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (!std::filesystem::is_directory(folder, error))
    return fail("cannot be written: its folder does not exist");
  if (std::filesystem::is_directory(path, error)) return fail("cannot be written: it is a directory");
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    // A pipe or /dev/null cannot be replaced by a file, only written to.
    std::ofstream device(path, std::ios::binary);
    device << content << std::flush;
    return device ? Diagnostics{} : fail("cannot be written");
  }
  const auto temporary =
      folder / fmt::format(".{}.{}.tmp", path.filename().string(), static_cast<long>(::getpid()));
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  stream << content << std::flush;
  const bool written = stream.good();
  stream.close();
  if (written) std::filesystem::rename(temporary, path, error);
  if (written && !error) return {};
  const auto reason = error ? error.message() : std::string("the folder is not writable or the disk is full");
  std::filesystem::remove(temporary, error);
  return fail("cannot be written: " + reason);
}

}  // namespace shardsim
