// From options to stores: what the option `coordination` and those of etcd say, and the records of jobs below it.
//
// Free functions over plain values; thread-safe. They throw Failure, also where the store does not answer in time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "coord/etcd_client.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

struct StoreLocation {
  StoreLocation() = default;
  // Of a directory, or an etcd that lets in everybody, the one text is all there is to say.
  StoreLocation(std::string coordination) : at(std::move(coordination)) {}  // NOLINT(google-explicit-constructor)
  explicit StoreLocation(const Options& options);
  bool is_etcd() const { return !at.starts_with('/'); }
  std::int64_t timeout_ms() const;  // of a call; no function below takes longer, whatever the mount does

  std::string at;  // "/directory", or "etcd[s]://host:port[,host:port...][/prefix]"
  std::string user, password_file;
  TlsFiles tls;
};

// What an "etcd://" or "etcds://" names: "http://host:port" or "https://host:port" each, and where keys begin, from one
// slash to another.
struct EtcdAddress {
  std::vector<std::string> endpoints;
  std::string prefix;
};
EtcdAddress parse_etcd_address(const std::string& at);

// Of one job. A directory is made where there is none.
std::unique_ptr<Store> open_store(const StoreLocation& location, const std::string& job);

// The jobs that have records, by name.
std::vector<std::string> jobs_with_records(const StoreLocation& location);

// A job's records at one moment, without those that are damaged.
struct JobRecords {
  std::vector<Entry> entries;
  std::uint64_t revision = 0;  // of all of etcd
};
JobRecords look_at_records(const StoreLocation& location, const std::string& job);
// Removes all there are of a job, unless any has changed since it was looked at; whether it did.
bool remove_records(const StoreLocation& location, const std::string& job, const JobRecords& seen);

}  // namespace ckpt::coord
