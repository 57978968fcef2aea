# regard serve, installed from the wheels in ./wheels (docs/serve.md says how to fetch them); no network is needed.
FROM python:3.11-slim
COPY wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links=/wheels 'regard[serve,vision,audio]' && rm -rf /wheels
RUN useradd --create-home regard
USER regard
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready')"]
ENTRYPOINT ["regard", "serve", "--host", "0.0.0.0", "--port", "8000"]
