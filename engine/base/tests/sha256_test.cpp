// SHA-256 against the examples of FIPS 180-4 (NIST, "SHA-256 test data").
#include "engine/base/sha256.hpp"

#include "fixtures/catch.hpp"

namespace kalibri {
namespace {

TEST_CASE("SHA-256 gives the standard's digests, however the bytes are cut") {
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  CHECK(sha256(text) == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 sha;
  for (const char& c : text) sha.add(&c, 1);
  CHECK(sha.hex() == sha256(text));
  CHECK(sha256("abd") != sha256("abc"));
}

}  // namespace
}  // namespace kalibri
