// What people hear if the driver refuses to pin the arena.
#include "device/pin_failure.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <filesystem>

#include "base/unique_fd.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::device {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t size_bytes = 1 << 20;
constexpr auto refusal = "cuMemHostRegister_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)";

// A mapped file.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) : path_(path) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::ftruncate(fd.get(), size_bytes), 0);
    data_ = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~MappedFile() { ::munmap(data_, size_bytes); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  // Not its beginning.
  Range range() const { return {static_cast<std::byte*>(data_) + size_bytes / 2, size_bytes / 2}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* data_ = nullptr;
};

TEST(PinFailure, NamesTheDriversErrorTheFileAndItsFileSystem) {
  const test::TemporaryDirectory directory(test::in_memory);
  const MappedFile file(directory.path() + "/segment");
  const std::string text = pin_failure({file.range(), file.range()}, refusal, std::nullopt);
  EXPECT_THAT(text, HasSubstr("refused to pin 1MiB"));
  EXPECT_THAT(text, HasSubstr(refusal));
  EXPECT_THAT(text, HasSubstr(file.path() + ", on tmpfs"));
  EXPECT_THAT(text, Not(HasSubstr("arena_dir")));
}

TEST(PinFailure, BlamesTheLimitOnlyIfItIsTooLow) {
  const test::TemporaryDirectory directory(test::in_memory);
  const MappedFile file(directory.path() + "/segment");
  for (const auto lockable : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(size_bytes)})
    EXPECT_THAT(pin_failure({file.range()}, refusal, lockable), Not(HasSubstr("RLIMIT_MEMLOCK")));
  const std::string text = pin_failure({file.range()}, refusal, 64 << 10);
  EXPECT_THAT(text, HasSubstr("may lock 64KiB (RLIMIT_MEMLOCK)"));
}

TEST(PinFailure, SaysThatTheArenaIsNotInMemory) {
  const MappedFile program(std::filesystem::read_symlink("/proc/self/exe").string() + ".pin_failure_test");
  const std::string text = pin_failure({program.range()}, refusal, std::nullopt);
  std::filesystem::remove(program.path());
  if (text.find(", on tmpfs") != std::string::npos) GTEST_SKIP() << "the build folder is in memory";
  EXPECT_THAT(text, HasSubstr("set arena_dir to a folder on tmpfs"));
}

TEST(PinFailure, NamesNoFileForAnonymousMemory) {
  std::vector<std::byte> memory(100);
  EXPECT_THAT(pin_failure({{memory.data(), memory.size()}}, refusal, std::nullopt), Not(HasSubstr(", on ")));
}

TEST(PinFailure, BlamesNoLimitIfThereIsNone) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (before.rlim_max == RLIM_INFINITY) {
    const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &unlimited), 0);
    EXPECT_EQ(lockable_bytes(), std::nullopt);
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  } else if (const auto bytes = lockable_bytes()) {  // not for a process that may exceed limits
    EXPECT_EQ(*bytes, before.rlim_cur);
  }
}

}  // namespace
}  // namespace ckpt::device
