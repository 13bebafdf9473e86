// StorageSource is the CheckpointSource that offers the checkpoints on persistent storage. It owns its file system.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "persist/checkpoint_source.hpp"
#include "persist/file_system.hpp"

namespace ckpt::persist {

class StorageSource : public CheckpointSource {
 public:
  StorageSource(std::unique_ptr<FileSystem> files, std::string job);

  std::string name() const override { return files_->label(job_); }
  Listing list() override;
  arena::Manifest manifest(const std::string& shard, CheckpointId checkpoint) override;
  void read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination) override;

 private:
  ShardReader& reader_of(const std::string& shard, CheckpointId checkpoint);
  const CheckpointRecord& record_of(CheckpointId checkpoint);

  const std::unique_ptr<FileSystem> files_;
  const std::string job_;
  std::map<CheckpointId, CheckpointRecord> records_;  // of the usable checkpoints that the last list() found
  // The reader of the last piece that was read. The next read is usually of the same piece.
  std::unique_ptr<ShardReader> reader_;
};

}  // namespace ckpt::persist
