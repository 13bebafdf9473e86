#include "coord/http.hpp"

#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.hpp"

namespace ckpt::coord {
namespace {

constexpr std::size_t reply_bytes_max = 64u << 20;
constexpr long connect_timeout_ms = 1000;
constexpr int look_interval_ms = 1000;

void start_curl() {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (started != CURLE_OK) throw HttpTrouble(HttpTrouble::Kind::unreachable, curl_easy_strerror(started), false);
}

struct HeadersDelete {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Headers = std::unique_ptr<curl_slist, HeadersDelete>;

void add(Headers& headers, const std::string& line) {
  headers.reset(curl_slist_append(headers.release(), line.c_str()));
}

// A request under way. Holds all that libcurl uses until the request has ended.
struct Transfer {
  Transfer(CURL* easy, const TlsFiles& tls, const HttpRequest& http_request);
  ~Transfer() { curl_easy_reset(handle); }  // afterwards libcurl no longer uses this object
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  HttpTrouble trouble(CURLcode code) const;
  void take_lines(const std::function<void(const std::string&)>& on_line);
  long status() const {
    long code = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
    return code;
  }

  CURL* const handle;
  const HttpRequest& request;
  Headers headers;
  std::string received;
  Clock::time_point received_at = Clock::now();
  std::array<char, CURL_ERROR_SIZE> why{};
};

std::size_t receive_bytes(char* bytes, std::size_t, std::size_t count, void* transfer) {
  auto& to = *static_cast<Transfer*>(transfer);
  to.received_at = Clock::now();
  to.received.append(bytes, count);
  return to.received.size() > reply_bytes_max ? 0 : count;
}

// Makes the kernel end a connection some five seconds after its other end has vanished, even if nothing is sent on it.
int keep_alive(void*, curl_socket_t socket, curlsocktype) {
  for (const auto& [option, value] :
       {std::pair(TCP_KEEPIDLE, 2), std::pair(TCP_KEEPINTVL, 1), std::pair(TCP_KEEPCNT, 3)})
    ::setsockopt(socket, IPPROTO_TCP, option, &value, sizeof(value));
  return CURL_SOCKOPT_OK;
}

Transfer::Transfer(CURL* easy, const TlsFiles& tls, const HttpRequest& http_request)
    : handle(easy), request(http_request) {
  add(headers, "Content-Type: application/json");
  add(headers, "Expect:");                        // send large bodies at once
  add(headers, "Grpc-Metadata-Hasleader: true");  // a server without etcd's leader refuses at once
  if (!request.authorization.empty()) add(headers, "Authorization: " + request.authorization);
  curl_easy_reset(handle);
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(handle, CURLOPT_POST, 1L);
  curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
  curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.data());
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &receive_bytes);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, why.data());
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_PROXY, "");
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, connect_timeout_ms);
  curl_easy_setopt(handle, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(handle, CURLOPT_SOCKOPTFUNCTION, &keep_alive);
  curl_easy_setopt(handle, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  if (!tls.ca.empty()) {  // trust these authorities and no others
    curl_easy_setopt(handle, CURLOPT_CAINFO, tls.ca.c_str());
    curl_easy_setopt(handle, CURLOPT_CAPATH, nullptr);
  }
  if (!tls.certificate.empty()) curl_easy_setopt(handle, CURLOPT_SSLCERT, tls.certificate.c_str());
  if (!tls.key.empty()) curl_easy_setopt(handle, CURLOPT_SSLKEY, tls.key.c_str());
}

HttpTrouble Transfer::trouble(CURLcode code) const {
  using Kind = HttpTrouble::Kind;
  const std::string text = why[0] != '\0' ? why.data() : curl_easy_strerror(code);
  long sent_bytes = 0;
  curl_easy_getinfo(handle, CURLINFO_REQUEST_SIZE, &sent_bytes);
  const bool was_sent = sent_bytes != 0;
  switch (code) {
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return {Kind::tls, text, was_sent};
    default:
      break;
  }
  // With TLS 1.3 the server may refuse this side's certificate after the handshake, even after the request. libcurl
  // then reports an alert.
  if (text.find(" alert ") != std::string::npos) return {Kind::tls, text, was_sent};
  return {was_sent ? Kind::broken : Kind::unreachable, text, was_sent};
}

void Transfer::take_lines(const std::function<void(const std::string&)>& on_line) {
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = received.find('\n', begin)) != received.npos; begin = end + 1)
    on_line(received.substr(begin, end - begin));
  received.erase(0, begin);
}

CurlEasy make_easy() {
  CurlEasy handle(curl_easy_init());
  if (!handle) throw HttpTrouble(HttpTrouble::Kind::unreachable, "libcurl has no memory left", false);
  return handle;
}

}  // namespace

void CurlEasyDelete::operator()(void* handle) const { curl_easy_cleanup(handle); }

Http::Http(TlsFiles tls) : tls_(std::move(tls)) { start_curl(); }

CurlEasy Http::take_idle() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return make_easy();
  CurlEasy handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

HttpReply Http::post(const HttpRequest& request, std::int64_t timeout_ms, bool sent_once) {
  CurlEasy handle = take_idle();
  HttpReply reply;
  {
    Transfer transfer(handle.get(), tls_, request);
    curl_easy_setopt(handle.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(timeout_ms, 1)));
    curl_easy_setopt(handle.get(), CURLOPT_FRESH_CONNECT, sent_once ? 1L : 0L);
    curl_easy_setopt(handle.get(), CURLOPT_FORBID_REUSE, sent_once ? 1L : 0L);
    if (const CURLcode code = curl_easy_perform(handle.get()); code != CURLE_OK) throw transfer.trouble(code);
    reply = {transfer.status(), std::move(transfer.received)};
  }
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(handle));
  return reply;
}

HttpStream::HttpStream(TlsFiles tls) : tls_(std::move(tls)), multi_((start_curl(), curl_multi_init())) {
  if (multi_ == nullptr) throw HttpTrouble(HttpTrouble::Kind::unreachable, "libcurl has no memory left", false);
}

HttpStream::~HttpStream() { curl_multi_cleanup(multi_); }

void HttpStream::pause(int milliseconds) { curl_multi_poll(multi_, nullptr, 0, milliseconds, nullptr); }
void HttpStream::wake() { curl_multi_wakeup(multi_); }

HttpReply HttpStream::run(const HttpRequest& request, std::int64_t silence_ms, const std::function<bool()>& goes_on,
                          const std::function<void(const std::string&)>& on_line) {
  const CurlEasy handle = make_easy();
  Transfer transfer(handle.get(), tls_, request);
  curl_multi_add_handle(multi_, handle.get());
  struct Removal {
    ~Removal() { curl_multi_remove_handle(multi, easy); }
    CURLM* multi;
    CURL* easy;
  } const removal{multi_, handle.get()};
  while (goes_on()) {
    int running = 0, left = 0;
    curl_multi_perform(multi_, &running);
    if (transfer.status() == 200) transfer.take_lines(on_line);
    if (const CURLMsg* done = curl_multi_info_read(multi_, &left); done != nullptr) {
      if (done->data.result != CURLE_OK) throw transfer.trouble(done->data.result);
      return {transfer.status(), std::move(transfer.received)};
    }
    if (milliseconds_between(transfer.received_at, Clock::now()) > static_cast<double>(silence_ms))
      throw HttpTrouble(HttpTrouble::Kind::broken, "no data arrived for " + std::to_string(silence_ms) + " ms", true);
    pause(look_interval_ms);
  }
  return {200, {}};
}

}  // namespace ckpt::coord
