#ifndef SIWAD_COPENSSL_SHIM_H
#define SIWAD_COPENSSL_SHIM_H

#include <openssl/opensslv.h>

#if OPENSSL_VERSION_NUMBER < 0x30000000L
#error "siwad needs OpenSSL 3.0 or later: install libssl-dev of a current distribution"
#endif

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

// Swift imports no macro that is an expression of other macros.
static const int siwad_public_key_selection = EVP_PKEY_PUBLIC_KEY;

#endif
