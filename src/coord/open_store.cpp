#include "coord/open_store.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.hpp"
#include "base/private_files.hpp"
#include "coord/bounded_store.hpp"
#include "coord/directory_store.hpp"
#include "coord/etcd_store.hpp"
#include "coord/node_registry.hpp"

namespace ckpt::coord {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view first_record = taken_prefix;  // every job has a record with this prefix

bool is_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0 && port < 65536;
}

// A name, an IPv4 address, or an IPv6 address in brackets.
bool is_host(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdefABCDEF:.";
  if (text.starts_with('[') && text.ends_with(']') && text.size() > 2)
    return text.substr(1, text.size() - 2).find_first_not_of(digits) == text.npos;
  constexpr std::size_t name_bytes_max = 253;  // the limit of DNS
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !text.empty() && text.size() <= name_bytes_max && text.find_first_not_of(letters) == text.npos;
}

bool is_utf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::string endpoint(const std::string& scheme, std::string_view text) {
  const auto colon = text.rfind(':');
  const bool has_port = colon != text.npos && !text.ends_with(']');
  const std::string_view host = text.substr(0, has_port ? colon : text.npos);
  const std::string_view port = has_port ? text.substr(colon + 1) : "2379";
  if (!is_host(host) || !is_port(port)) return {};
  return scheme + "://" + std::string(host) + ":" + std::string(port);
}

struct EtcdPlace {
  std::shared_ptr<EtcdClient> client;
  std::string prefix;
};

EtcdPlace etcd_place(const StoreLocation& location) {
  const auto require = [](bool holds, const char* sentence) {
    if (!holds) throw Failure(CKPT_ERR_INVALID, sentence);
  };
  require(location.password_file.empty() || !location.user.empty(),
          "the option etcd_password_file is given without etcd_user; give both or none");
  require(location.user.empty() || !location.password_file.empty(),
          "the option etcd_user is given without etcd_password_file; give both or none");
  require(location.tls.key.empty() || !location.tls.certificate.empty(),
          "the option etcd_key_file is given without etcd_cert_file; give both or none");
  require(location.tls.certificate.empty() || !location.tls.key.empty(),
          "the option etcd_cert_file is given without etcd_key_file; give both or none");
  const EtcdAddress address = parse_etcd_address(location.at);
  const bool tls_files = !location.tls.ca.empty() || !location.tls.key.empty();
  require(!tls_files || address.endpoints.front().starts_with("https"),
          "options for TLS (etcd_ca_file, etcd_cert_file, etcd_key_file) are given, but the option coordination begins "
          "with etcd://; write etcds://");
  EtcdAccess access{address.endpoints, location.tls, location.user, {}};
  if (!location.user.empty()) access.password = read_secret_file(location.password_file, "etcd_password_file");
  require(is_utf8(access.user), "the option etcd_user is not UTF-8; write the user's name in UTF-8");
  require(is_utf8(access.password),
          "the password in the file of the option etcd_password_file is not UTF-8; write it in UTF-8");
  return {std::make_shared<EtcdClient>(std::move(access)), address.prefix};
}

}  // namespace

StoreLocation::StoreLocation(const Options& options)
    : at(options.coordination),
      user(options.etcd_user),
      password_file(options.etcd_password_file),
      tls{options.etcd_ca_file, options.etcd_cert_file, options.etcd_key_file} {}

EtcdAddress parse_etcd_address(const std::string& at) {
  constexpr std::string_view plain = "etcd://", secure = "etcds://";
  std::string_view rest = at;
  const bool is_secure = rest.starts_with(secure);
  const auto refuse = [&] {
    // The message leaves out the text before an '@', which may be a password.
    const auto secret = at.rfind('@');
    throw Failure(CKPT_ERR_INVALID, "the option coordination has the value \"" +
                                        (secret == at.npos ? at : "..." + at.substr(secret)) +
                                        "\", but must be like etcd://host:2379,host:2379/prefix, or etcds:// with TLS");
  };
  if (!is_secure && !rest.starts_with(plain)) refuse();
  rest.remove_prefix(is_secure ? secure.size() : plain.size());
  const auto slash = rest.find('/');
  std::string_view hosts = rest.substr(0, slash);
  std::string prefix(slash == rest.npos ? "" : rest.substr(slash + 1));
  while (prefix.ends_with('/')) prefix.pop_back();
  if (prefix.empty()) prefix = "ckptengine";
  if (!is_key(prefix)) refuse();
  EtcdAddress address{{}, "/" + prefix + "/"};
  for (bool more = true; more;) {
    const auto comma = hosts.find(',');
    more = comma != hosts.npos;
    address.endpoints.push_back(endpoint(is_secure ? "https" : "http", hosts.substr(0, comma)));
    if (address.endpoints.back().empty()) refuse();
    if (more) hosts.remove_prefix(comma + 1);
  }
  return address;
}

std::int64_t StoreLocation::timeout_ms() const { return is_etcd() ? etcd_timeout_ms : directory_timeout_ms; }

std::unique_ptr<Store> open_store(const StoreLocation& location, const std::string& job) {
  return within(location.timeout_ms(), location.at, [=]() -> std::unique_ptr<Store> {
    if (!location.is_etcd()) return std::make_unique<DirectoryStore>(location.at + "/" + job);
    const EtcdPlace place = etcd_place(location);
    return std::make_unique<EtcdStore>(place.client, place.prefix + job + "/");
  });
}

namespace {

std::vector<std::string> find_jobs(const StoreLocation& location) {
  std::vector<std::string> jobs;
  if (location.is_etcd()) {
    const EtcdPlace place = etcd_place(location);
    for (const std::string& key : EtcdStore(place.client, place.prefix).keys(""))
      if (const auto slash = key.find('/'); slash != key.npos && key.substr(slash + 1).starts_with(first_record))
        jobs.push_back(key.substr(0, slash));
    jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
    return jobs;
  }
  std::error_code error;
  for (fs::directory_iterator entry(location.at, error), end; !error && entry != end; entry.increment(error))
    if (entry->is_directory(error) && fs::exists(entry->path() / first_record))
      jobs.push_back(entry->path().filename().string());
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

JobRecords look(const StoreLocation& location, const std::string& job) {
  if (location.is_etcd()) {
    const EtcdPlace place = etcd_place(location);
    EtcdStore::Content content = EtcdStore(place.client, place.prefix + job + "/").content();
    return {std::move(content.entries), content.revision};
  }
  const std::string directory = location.at + "/" + job;
  if (!fs::exists(directory)) return {};  // a DirectoryStore would create it
  return {DirectoryStore(directory).undamaged(), 0};
}

bool remove(const StoreLocation& location, const std::string& job, const JobRecords& seen) {
  if (location.is_etcd()) {
    const EtcdPlace place = etcd_place(location);
    return EtcdStore(place.client, place.prefix + job + "/").remove_all(seen.revision);
  }
  const std::string directory = location.at + "/" + job;
  if (!fs::exists(directory)) return seen.entries.empty();
  return DirectoryStore(directory).remove_all(seen.entries);
}

}  // namespace

std::vector<std::string> jobs_with_records(const StoreLocation& location) {
  return within(location.timeout_ms(), location.at, [=] { return find_jobs(location); });
}

JobRecords look_at_records(const StoreLocation& location, const std::string& job) {
  return within(location.timeout_ms(), location.at, [=] { return look(location, job); });
}

bool remove_records(const StoreLocation& location, const std::string& job, const JobRecords& seen) {
  return within(location.timeout_ms(), location.at, [=] { return remove(location, job, seen); });
}

}  // namespace ckpt::coord
