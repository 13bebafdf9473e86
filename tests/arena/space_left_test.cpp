#include "arena/space_left.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.hpp"

namespace ckpt::arena {
namespace {

class MemoryGroups : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = directory_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void limit_2(const std::string& group, const std::string& max, const std::string& current) const {
    write("sys/fs/cgroup" + group + "/memory.max", max + "\n");
    write("sys/fs/cgroup" + group + "/memory.current", current + "\n");
  }
  void limit_1(const std::string& group, const std::string& limit, const std::string& usage) const {
    write("sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", limit + "\n");
    write("sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", usage + "\n");
  }
  std::uint64_t left_bytes(const std::string& groups, const std::string& mounts) const {
    write("cgroup", groups);
    write("mountinfo", mounts);
    return memory_groups_left_bytes({directory_ / "cgroup", directory_ / "mountinfo", directory_.path()});
  }

  const std::string mounts_v2_ = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
  const std::string mounts_v1_ =
      "31 24 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
      "35 24 0:31 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
      "36 24 0:32 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n";
  test::TemporaryDirectory directory_{test::in_memory};
};

TEST_F(MemoryGroups, UsesTheTightestLimitOfAllParentGroups) {
  const std::string job = "/system.slice/slurmstepd.scope/job_7";
  limit_2(job + "/step_0/user/task_0", "max", "500");
  limit_2(job + "/step_0/user", "max", "900");
  limit_2(job + "/step_0", "10000", "1000");
  limit_2(job, "4000", "1000");
  limit_2("/system.slice/slurmstepd.scope", "max", "1000");
  EXPECT_EQ(left_bytes("0::" + job + "/step_0/user/task_0\n", mounts_v2_), 3000u);
  limit_2(job, "1000", "2000");
  EXPECT_EQ(left_bytes("0::" + job + "/step_0/user/task_0\n", mounts_v2_), 0u);
}

TEST_F(MemoryGroups, VersionOneIsReadAtItsMemoryController) {
  limit_1("/slurm/uid_1/job_7/step_0", "9223372036854771712", "100");
  limit_1("/slurm/uid_1/job_7", "5000", "1000");
  limit_1("", "9223372036854771712", "100");
  const std::string groups =
      "12:cpu,cpuacct:/slurm/other\n9:memory:/slurm/uid_1/job_7/step_0\n1:name=systemd:/x\n0::/x\n";
  EXPECT_EQ(left_bytes(groups, mounts_v1_), 4000u);
}

TEST_F(MemoryGroups, ObeysBothVersionsOnAHybridSystem) {
  limit_1("/a", "5000", "1000");
  limit_2("/b", "3000", "1000");
  EXPECT_EQ(left_bytes("9:memory:/a\n0::/b\n", mounts_v1_ + mounts_v2_), 2000u);
}

TEST_F(MemoryGroups, AContainerSeesItsOwnGroupAtTheTopOfTheMount) {
  limit_2("", "7000", "1000");
  EXPECT_EQ(left_bytes("0::/docker/abc\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"), 6000u);
  EXPECT_EQ(left_bytes("0::/\n", mounts_v2_), 6000u);
  limit_2("/../../elsewhere", "10", "1");
  EXPECT_EQ(left_bytes("0::/../../elsewhere\n", mounts_v2_), 6000u);
  limit_2("/inner", "5000", "1000");
  EXPECT_EQ(left_bytes("0::/docker/abc/inner\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            4000u);
}

TEST_F(MemoryGroups, DoesNotCountReclaimablePageCacheAsUsed) {
  limit_2("/a", "5000", "4500");
  write("sys/fs/cgroup/a/memory.stat", "anon 500\nfile 4000\nshmem 100\ninactive_file 3000\nactive_file 900\n");
  EXPECT_EQ(left_bytes("0::/a\n", mounts_v2_), 3500u);
}

TEST_F(MemoryGroups, HasNoLimitWithoutReadableGroups) {
  EXPECT_EQ(left_bytes("", ""), unlimited_bytes);
  EXPECT_EQ(left_bytes("0::/a\n", mounts_v2_), unlimited_bytes);
  EXPECT_EQ(left_bytes("nonsense\n0:\n:::\n", "too short\n - \n1 2 3 - cgroup2\n"), unlimited_bytes);
}

TEST_F(MemoryGroups, NamesMayHaveBlanks) {
  limit_2("/with blank", "5000", "1000");
  EXPECT_EQ(left_bytes("0::/with blank\n", mounts_v2_), 4000u);
  write("mnt/with blank/a/memory.max", "5000\n");
  write("mnt/with blank/a/memory.current", "2000\n");
  EXPECT_EQ(left_bytes("0::/a\n", "30 23 0:26 / /mnt/with\\040blank rw - cgroup2 cgroup2 rw\n"), 3000u);
}

}  // namespace
}  // namespace ckpt::arena
