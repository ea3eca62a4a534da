#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace shardsim {

/// One thing that is wrong with an input, as the user should read it.
struct Diagnostic {
  std::string file;      ///< as the user wrote it; "command line" for flags; empty when unknown
  std::string pointer;   ///< JSON pointer ("/layout/tp"), line ("line 12") or flag ("--tp")
  std::string problem;   ///< "unknown key", "bad value", "does not divide the world size"
  std::string expected;  ///< "an integer >= 1"; empty when the problem says it all
  std::string found;     ///< "\"fast\"", "-3"; empty when nothing was there
  std::string hint;      ///< "did you mean \"tp\"?", "nearest legal value: 8"
};
using Diagnostics = std::vector<Diagnostic>;

/// Several lines of text for one diagnostic, without a trailing newline.
[[nodiscard]] std::string format_diagnostic(const Diagnostic& diagnostic);

/// A value, or every reason why there is none. Never both, never neither.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}                        // NOLINT(google-explicit-constructor)
  Result(Diagnostics errors) : state_(std::move(errors)) {}            // NOLINT(google-explicit-constructor)
  Result(Diagnostic error) : state_(Diagnostics{std::move(error)}) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<T>(state_); }
  [[nodiscard]] T& value() & { return std::get<T>(state_); }
  [[nodiscard]] T&& value() && { return std::get<T>(std::move(state_)); }
  [[nodiscard]] const Diagnostics& errors() const { return std::get<Diagnostics>(state_); }

 private:
  std::variant<T, Diagnostics> state_;
};

}  // namespace shardsim
