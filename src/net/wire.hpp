// The format of all frames between agents.
//
// The table lists the kinds of frames. A kind is also the id of a UCX active message. Each frame has a header of fixed
// size (the structs below: fields are little-endian, naturally aligned, and without holes), and some have a payload.
// The asking side makes the connection, after the handshake at the listener (handshake.hpp). Answers go back over the
// same connection. Before each header, except that of a hello, comes a seal of 8 bytes. Only the two sides of the
// session know the seal (session.hpp).
//
//    id  kind            header    payload             direction
//    1   hello           80 bytes  -                   both ways, first; nothing else is accepted before it
//    2   message         0 bytes   the message         asker to other
//    3   fetch_request   48 bytes  shard name          asker to source
//    4   fetch_answer    32 bytes  manifest if wanted  source to asker
//    5   accept          8 bytes   -                   asker to source: send the chunks
//    6   chunk           16 bytes  the chunk's bytes   source to asker
//    7   cancel          8 bytes   -                   asker to source: send no more
//    8   received        24 bytes  -                   asker to source: this chunk is here, and whether there is room
//    9   room            8 bytes   -                   asker to source: there is room again
//
// A fetch_request names a range of the piece. The source cuts the range where the piece ends, so it may be empty. The
// answer has the size of the range (data_bytes). Offsets count from the first byte of the range. The range is divided
// into grains of 64 KiB; the last grain may be shorter. A chunk is several consecutive grains, at most chunk_bytes.
// Chunks may arrive in any order, each grain once. A source that can send nothing for a while says that it waits
// (Status::waiting). The receiver drops a frame and its payload if the frame cannot be decoded, exceeds a bound, or
// names an unknown request.
//
// Pure functions; thread-safe.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace ckpt::net::wire {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and copied as it lies in memory");

inline constexpr std::uint32_t magic = 0x4e504b43;  // "CKPN"
// The version of the protocol. It covers all that must be the same on both sides, such as socket_segment_size in
// ucx.cpp.
inline constexpr std::uint32_t version = 17;
inline constexpr std::size_t shard_name_bytes_max = 4096;
inline constexpr std::size_t manifest_bytes_max = 64u << 20;
inline constexpr std::size_t grain_bytes = 64u << 10;
// How long the asking side may be without room for chunks, in multiples of TransportOptions::progress_timeout_ms. After
// that time, each side gives up the fetch.
inline constexpr std::int64_t room_timeout = 10;

enum Kind : std::uint16_t {
  kind_hello = 1,
  kind_message = 2,
  kind_fetch_request = 3,
  kind_fetch_answer = 4,
  kind_accept = 5,
  kind_chunk = 6,
  kind_cancel = 7,
  kind_received = 8,
  kind_room = 9,
  kind_end = 10
};

struct Hello {
  std::uint32_t magic = wire::magic;
  std::uint32_t version = wire::version;
  std::uint64_t job_hash = 0;
  std::uint32_t from_node = 0;
  std::uint32_t to_node = 0;
  std::uint64_t from_instance = 0;
  std::uint64_t to_instance = 0;
  std::uint64_t session = 0;
  std::array<std::byte, 32> proof = {};  // proof that the sender knows the session's key (session.hpp)
};
static_assert(sizeof(Hello) == 80);

// Flags of FetchRequest::wishes.
inline constexpr std::uint32_t wants_manifest = 1;
inline constexpr std::uint32_t is_urgent = 2;

struct FetchRequest {
  std::uint64_t request = 0;  // chosen by the asker, unique on its connection
  std::uint64_t checkpoint = 0;
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = UINT64_MAX;  // first_byte + size_bytes may exceed 64 bits
  std::uint32_t shard_bytes = 0;          // length of the shard name
  std::uint32_t wishes = wants_manifest;  // flags, see above
  std::uint64_t chain = UINT64_MAX;       // FetchPart::chain
};
static_assert(sizeof(FetchRequest) == 48);

enum class Status : std::uint32_t {
  found = 0,
  not_there = 1,
  refused = 2,  // too many requests wait at the source, or the manifest is too large
  waiting = 3   // the source will answer later; repeated as a sign of life
};

struct FetchAnswer {
  std::uint64_t request = 0;
  std::uint64_t data_bytes = 0;  // size of the range
  std::uint64_t chunk_bytes = 0;
  std::uint32_t manifest_bytes = 0;
  Status status = Status::found;
};
static_assert(sizeof(FetchAnswer) == 32);

struct Control {  // accept, cancel, room
  std::uint64_t request = 0;
};
static_assert(sizeof(Control) == 8);

struct Chunk {
  std::uint64_t request = 0;
  std::uint64_t offset = 0;
};
static_assert(sizeof(Chunk) == 16);

struct Received {
  std::uint64_t request = 0;
  std::uint64_t offset = 0;
  std::uint64_t room = 1;  // 0: the next chunk waits until there is room
};
static_assert(sizeof(Received) == 24);

// Decodes a header of type T. Returns nothing unless the size is exactly right.
template <class T>
std::optional<T> decode(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

// True if the fields are within their bounds. Other code decides whether the sender is genuine.
bool plausible(const Hello& hello);
bool plausible(const FetchRequest& request, std::size_t payload_bytes);
bool plausible(const FetchAnswer& answer, std::size_t payload_bytes);
// True if the answer offers no more bytes than the request asks for, and a manifest only if the request wants it.
bool within(const FetchAnswer& answer, const FetchRequest& request);
// `data_bytes` and `chunk_bytes` are those of the answer that announced the range.
bool plausible(const Chunk& chunk, std::size_t payload_bytes, std::size_t data_bytes, std::size_t chunk_bytes);

constexpr std::size_t grain_count(std::size_t bytes) { return bytes / grain_bytes + (bytes % grain_bytes != 0); }

// The bytes of `data` that `request` asks for. They are always within `data`, whatever the fields are.
std::span<const std::byte> range_of(const FetchRequest& request, std::span<const std::byte> data);

std::uint64_t job_hash(std::string_view job);

}  // namespace ckpt::net::wire
