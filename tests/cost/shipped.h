#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "io/run_reader.h"

namespace shardsim::testing {

/// A profile under hardware_profiles/.
inline HardwareProfile shipped(const std::string& name) {
  auto profile = read_named_profile(name, SHARDSIM_SOURCE_DIR);
  if (!profile.ok()) {
    for (const auto& error : profile.errors()) ADD_FAILURE() << format_diagnostic(error);
    return {};
  }
  return std::move(profile).value();
}

/// Rows of a table of measurements, comments left out.
inline std::vector<std::vector<std::string>> measured_rows(const std::string& path) {
  std::ifstream file(std::filesystem::path(SHARDSIM_SOURCE_DIR) / "validation/measured" / path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream cells(line);
    auto& row = rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
  }
  return rows;
}

}  // namespace shardsim::testing
