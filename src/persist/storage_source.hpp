// The steps on storage as a source. The file system belongs to it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "persist/file_system.hpp"
#include "persist/source.hpp"

namespace ckpt::persist {

class StorageSource : public Source {
 public:
  StorageSource(std::unique_ptr<FileSystem> files, std::string job);

  std::string name() const override { return files_->label(job_); }
  Listing list() override;
  arena::Manifest manifest(const std::string& shard, Version version) override;
  void read(const std::string& shard, Version version, ByteRange range, std::byte* destination) override;

 private:
  ShardReader& reader_of(const std::string& shard, Version version);
  const StepRecord& step_of(Version version);

  const std::unique_ptr<FileSystem> files_;
  const std::string job_;
  std::map<Version, StepRecord> steps_;  // of the last list()
  // The shard read last: its parts are asked for one after the other.
  std::unique_ptr<ShardReader> reader_;
};

}  // namespace ckpt::persist
