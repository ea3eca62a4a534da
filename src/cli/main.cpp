#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "cli/command.h"

namespace {

std::filesystem::path executable_path(const char* name) {
  std::error_code error;
  auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::absolute(name, error) : path;
}

int report_bug(const char* what) {
  std::cerr << "shardsim: internal error: " << what
            << "\nThis is a bug in shardsim, not in your input. Please report it with the command and the "
               "run file.\n";
  return shardsim::kBug;
}

/// Predictions make and drop large arrays by the dozen. Kept in the heap they are not zeroed page by page by
/// the kernel every time, and huge pages make the first touch of the heap a few faults instead of thousands.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargestThreshold = 32 << 20;  // glibc 2.36, malloc.c: HEAP_MAX_SIZE / 2; more is refused
  constexpr int kHeap = 64 << 20;
  mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, kHeap);
  void* volatile grows_heap = std::malloc(kLargestThreshold / 2);  // by the padding too
  std::free(grows_heap);
  constexpr std::uintptr_t kHugePage = 2 << 20;
  auto* const end = static_cast<std::byte*>(sbrk(0));
  auto* begin = end - kHeap;
  begin += (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  // A kernel without huge pages answers with an error, and everything is as before.
  madvise(begin, static_cast<std::size_t>(end - begin), MADV_HUGEPAGE);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  const bool out_is_terminal = isatty(STDOUT_FILENO) != 0;
  const bool err_is_terminal = isatty(STDERR_FILENO) != 0;
  const shardsim::Console console{std::cout,         std::cerr,       {out_is_terminal},
                                  {err_is_terminal}, err_is_terminal, executable_path(argv[0])};
  try {
    return shardsim::run_command_line(std::vector<std::string>(argv + 1, argv + argc), console);
  } catch (const std::exception& error) {
    return report_bug(error.what());
  }
}
