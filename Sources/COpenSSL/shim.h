#ifndef SIWAD_COPENSSL_SHIM_H
#define SIWAD_COPENSSL_SHIM_H

#include <openssl/opensslv.h>

#if OPENSSL_VERSION_NUMBER < 0x30000000L
#error "siwad needs OpenSSL 3.0 or later: install libssl-dev of a current distribution"
#endif

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>

#endif
