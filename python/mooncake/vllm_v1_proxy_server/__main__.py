from mooncake.vllm_v1_proxy_server import main

main()
