#include "agent/trainers/claims.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"

namespace ckpt::agent {
namespace {

namespace fs = std::filesystem;
using core::Rank;

constexpr std::int64_t longest_sweep_ms = 1000;  // an exit wakes the pidfd, and a goodbye is swept at once

struct Record {
  LivingTrainer trainer;
  std::optional<Process> process;  // none: it has ended
};

std::optional<Rank> rank_of(const std::string& file_name) {
  constexpr std::string_view prefix = "rank-", suffix = ".trainer";
  if (!file_name.starts_with(prefix) || !file_name.ends_with(suffix)) return std::nullopt;
  const char* begin = file_name.data() + prefix.size();
  const char* end = file_name.data() + file_name.size() - suffix.size();
  Rank rank = 0;
  const auto [stop, error] = std::from_chars(begin, end, rank);
  return error == std::errc() && stop == end ? std::optional(rank) : std::nullopt;
}

std::optional<Record> read_record(const fs::path& path, Rank rank) {
  std::ifstream file(path);
  const auto body = nlohmann::json::parse(file, nullptr, false);
  if (!body.is_object()) return std::nullopt;
  try {
    auto process = Process::open(body.at("pid").get<pid_t>());
    if (process && (process->start_time() != body.at("start_time").get<std::uint64_t>() || process->exited()))
      process.reset();
    return Record{{rank, body.at("instance").get<std::uint64_t>(), body.at("main_shard").get<std::string>(),
                   body.at("private_shard").get<std::string>()},
                  std::move(process)};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::vector<Record> read_records(const std::string& directory) {
  std::vector<Record> records;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const auto rank = rank_of(entry->path().filename().string());
    if (!rank) continue;
    if (auto record = read_record(entry->path(), *rank)) records.push_back(std::move(*record));
  }
  return records;
}

}  // namespace

Claims::Claims(std::string directory) : directory_(std::move(directory)) {
  for (Record& record : read_records(directory_)) {
    const LivingTrainer& trainer = record.trainer;
    if (record.process)
      holders_.emplace(trainer.rank, Holder{trainer.instance, std::move(*record.process), false, false});
    else
      ended_.push_back({trainer.rank, trainer.instance, true});
  }
}

Claims::Answer Claims::claim(Claimant& claimant) {
  const auto held = holders_.find(claimant.rank);
  Answer answer;
  if (claimant.incarnation != 0) {
    // The trainer continues with the slots that it has. So it must be the same trainer that got them.
    const bool same = held != holders_.end() && held->second.instance == claimant.instance &&
                      held->second.process.pid() == claimant.process->pid();
    if (!same)
      return {Verdict::superseded,
              "this node does not know rank " + std::to_string(claimant.rank) +
                  "'s trainer any more: another trainer claimed the rank, or the node's arena was replaced; restart "
                  "the trainer",
              std::nullopt};
    held->second.connected = true;
    return {Verdict::admitted, "", std::nullopt};
  }
  if (held != holders_.end()) {
    const Holder& holder = held->second;
    if (!holder.process.exited() && !holder.closed && !is_own_past(holder, claimant)) {
      const std::string rank = "rank " + std::to_string(claimant.rank);
      if (holder.process.pid() == claimant.process->pid())
        return {Verdict::wait, rank + " is held by another engine of this process; close that engine first",
                std::nullopt};
      const std::string who = rank + " is held by the living process " + std::to_string(holder.process.pid());
      if (!holder.process.stopped()) return {Verdict::wait, who + "; end that process first", std::nullopt};
      holder.process.kill();
      return {Verdict::wait, who + ". It was stopped, so the agent has killed it, but it has not ended yet; try again",
              std::nullopt};
    }
    answer.retired_instance = holder.instance;
    retire(claimant.rank);
  }
  const auto ended =
      std::find_if(ended_.begin(), ended_.end(), [&](const Retired& gone) { return gone.rank == claimant.rank; });
  if (ended != ended_.end()) {
    answer.retired_instance = ended->instance;
    ended_.erase(ended);
  }
  answer.verdict = Verdict::admitted;
  record(claimant);
  holders_.emplace(claimant.rank, Holder{claimant.instance, std::move(*claimant.process), true, false});
  return answer;
}

// The same engine again, or an engine that its process has closed.
bool Claims::is_own_past(const Holder& holder, const Claimant& claimant) {
  if (holder.process.pid() != claimant.process->pid() || holder.connected) return false;
  const auto& open = claimant.open_engines;
  return holder.instance == claimant.instance || std::find(open.begin(), open.end(), holder.instance) == open.end();
}

void Claims::closed(Rank rank, std::uint64_t instance, pid_t pid) {
  const auto held = holders_.find(rank);
  if (held == holders_.end() || held->second.instance != instance || held->second.process.pid() != pid) return;
  held->second.closed = true;
}

void Claims::disconnected(Rank rank, std::uint64_t instance) {
  const auto held = holders_.find(rank);
  if (held != holders_.end() && held->second.instance == instance) held->second.connected = false;
}

std::vector<Claims::Retired> Claims::sweep() {
  std::vector<Retired> retired = std::exchange(ended_, {});
  for (const auto& [rank, holder] : holders_)
    if (holder.process.exited() || holder.closed) retired.push_back({rank, holder.instance, !holder.closed});
  for (const Retired& gone : retired) retire(gone.rank);
  return retired;
}

std::vector<int> Claims::process_fds() const {
  std::vector<int> fds;
  for (const auto& [rank, holder] : holders_) fds.push_back(holder.process.fd());
  return fds;
}

std::int64_t Claims::sweep_due_ms() const {
  const bool is_due = !ended_.empty() || std::any_of(holders_.begin(), holders_.end(),
                                                     [](const auto& held) { return held.second.closed; });
  return is_due ? 0 : longest_sweep_ms;
}

std::string Claims::record_path(Rank rank) const { return directory_ + "/rank-" + std::to_string(rank) + ".trainer"; }

// The rename makes the record whole or absent, whenever this agent dies.
void Claims::record(const Claimant& claimant) const {
  const std::string path = record_path(claimant.rank), draft = path + ".new";
  const nlohmann::json body = {{"pid", claimant.process->pid()},
                               {"start_time", claimant.process->start_time()},
                               {"instance", claimant.instance},
                               {"main_shard", claimant.main_shard},
                               {"private_shard", claimant.private_shard}};
  {
    std::ofstream file(draft, std::ios::trunc);
    file << body.dump() << '\n';
    if (!file.flush())
      throw_errno(CKPT_ERR_NO_SPACE, "cannot write " + draft + "; make room in that file system or enlarge it");
  }
  if (::rename(draft.c_str(), path.c_str()) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot put " + path + " in place");
}

void Claims::retire(Rank rank) {
  ::unlink(record_path(rank).c_str());
  holders_.erase(rank);
}

std::vector<LivingTrainer> living_trainers(const std::string& directory) {
  std::vector<LivingTrainer> trainers;
  for (Record& record : read_records(directory))
    if (record.process) trainers.push_back(std::move(record.trainer));
  return trainers;
}

}  // namespace ckpt::agent
