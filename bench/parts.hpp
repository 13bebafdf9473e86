// Parts runs the parts of a GPU bench one after the other. If a part fails, the others still run.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ckpt::bench {

inline constexpr int nothing_measured = 3;  // exit status if there is no GPU that the build can use

class Parts {
 public:
  explicit Parts(std::string bench) : bench_(std::move(bench)) {}

  void run(const std::string& name, const std::function<void()>& part) {
    try {
      part();
    } catch (const std::exception& error) {
      failures_.push_back(name + " failed: " + error.what());
    }
    std::fflush(stdout);
  }
  bool any_failed() const { return !failures_.empty(); }
  // Prints a sentence for each part that failed. Returns the exit status.
  int finish() const {
    for (const std::string& failure : failures_) std::fprintf(stderr, "%s: %s\n", bench_.c_str(), failure.c_str());
    return failures_.empty() ? 0 : 1;
  }

 private:
  const std::string bench_;
  std::vector<std::string> failures_;
};

}  // namespace ckpt::bench
