// Starts real etcd servers for one test, with scripts/etcd_server.sh.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

#include "coord/open_store.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::test {

class EtcdServer {
 public:
  explicit EtcdServer(const std::string& options = "") { location_ = run("start", options); }
  ~EtcdServer() { run("stop"); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  const std::string& location() const { return location_; }
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  // Servers that do not run stay as they were.
  void start() { run("start"); }
  void stop() { run("stop"); }
  void kill(int member = 0) const { signal(member, SIGKILL); }
  void freeze(int member = 0) const { signal(member, SIGSTOP); }
  void thaw(int member = 0) const { signal(member, SIGCONT); }
  // Has the administrator do something, in etcdctl's words.
  void control(const std::string& words) { run("control", words); }
  // Forgets old revisions, and makes room.
  void compact() { run("free"); }

 private:
  std::string run(const std::string& command, const std::string& options = "") const {
    const std::string line =
        "bash " CKPT_SOURCE_DIR "/scripts/etcd_server.sh " + command + " " + folder_.path() + " " + options;
    FILE* const output = ::popen(line.c_str(), "r");
    std::string text;
    std::array<char, 256> part{};
    while (output != nullptr && std::fgets(part.data(), part.size(), output) != nullptr) text += part.data();
    if (output == nullptr || ::pclose(output) != 0) throw std::runtime_error("failed: " + line);
    text.resize(text.find_last_not_of('\n') + 1);
    return text;
  }
  void signal(int member, int number) const {
    pid_t pid = 0;
    std::ifstream(file(std::to_string(member) + "/pid")) >> pid;
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, number), 0);
  }

  TemporaryDirectory folder_;
  std::string location_;
};

}  // namespace ckpt::test
