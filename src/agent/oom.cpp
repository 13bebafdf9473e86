#include "agent/oom.hpp"

#include <cerrno>
#include <fstream>
#include <system_error>

namespace ckpt::agent {
namespace {

constexpr int last_of_all = -999;  // -1000 would be never, also where this process itself is what grows

}  // namespace

void be_ended_last(const Log& log, const std::string& path) {
  int now = 0;
  if (std::ifstream file(path); !(file >> now) || now <= last_of_all) return;
  std::ofstream file(path);
  errno = 0;
  if (file << last_of_all && file.flush()) return;
  log->info(
      "oom_score_adj stays {} ({}), so the kernel may end this agent when memory runs out, which frees none; give "
      "it CAP_SYS_RESOURCE, or set OOMScoreAdjust in its unit",
      now, std::generic_category().message(errno));
}

}  // namespace ckpt::agent
